"""What indexing one tar gives."""

from dataclasses import dataclass

import pyarrow as pa

from .listing import Refusal


@dataclass(frozen=True)
class TarRows:
    """The rows of a tar's sidecar, and all else that is known of the tar."""

    table: pa.Table
    digest: str
    """Of the tar."""
    naming: str
    """How its members are named (see sidecar.py)."""
    refused: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know of it."""
