"""Writers: Dask jobs that pack a corpus into tar shards with length sidecars. Never imports torch.

Names are imported when they are used, so that `import uttershard.writers` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import PackSummary, pack
    from .settings import PackSettings

__all__ = ["PackSettings", "PackSummary", "pack"]

_HOMES = {"PackSettings": "settings", "PackSummary": "run", "pack": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
