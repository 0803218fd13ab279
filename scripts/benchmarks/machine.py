"""What the measurements ran on."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

_LIBRARIES = ("uttershard", "numpy", "pyarrow", "torch", "webdataset", "soundfile", "miniaudio", "xxhash")


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, versions, date and load, as JSON values."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _after_colon("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
    }


def _after_colon(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
