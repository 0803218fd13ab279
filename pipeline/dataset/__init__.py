"""The format, version 1: ids and member names, tar layout, sidecar, manifest; read and written here, decided nowhere else."""
