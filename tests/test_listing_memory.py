"""G14: the client of a pack job holds columns, not Python objects: a corpus costs it a bounded number of bytes each."""

import json
import subprocess
import sys
from pathlib import Path

LISTING_BYTES = 400
"""Peak of an utterance with a 30-byte id, a 50-byte path and a 45-byte text, all steps included: 10 M in 4 GB."""


def measure(utterances: int, folder: Path) -> dict[str, float]:
    script = Path(__file__).with_name("listing_memory.py")
    command = [sys.executable, str(script), str(utterances), "16", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def test_bytes_of_an_utterance(tmp_path: Path) -> None:
    few, many = measure(20_000, tmp_path), measure(120_000, tmp_path)
    assert many["utterances"] == 120_000
    growth = (many["peak_mb"] - few["peak_mb"]) * 1e6 / 100_000
    assert growth < LISTING_BYTES, f"{growth:.0f} bytes an utterance: {few} and {many}"
