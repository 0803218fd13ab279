"""Fixtures that any test may use."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo corpus: `manifest.jsonl` and `kaldi/` over the same `audio/`."""
    return ROOT / "demo"
