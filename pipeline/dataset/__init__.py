"""The format, version 1: member names, tar layout, sidecar, manifest; decided here and nowhere else."""
