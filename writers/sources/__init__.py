"""Readers of corpora, one file a layout, behind the one `Source` interface."""

from .base import Source
from .registry import open_source, source_names

__all__ = ["Source", "open_source", "source_names"]
