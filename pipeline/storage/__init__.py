"""Where the bytes of tars come from: one small protocol, one file a backend."""
