"""Writers: Dask jobs that pack a corpus into tar shards with length sidecars. Never imports torch.

Names are imported when they are used, so that `import uttershard.writers` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .index import IndexSummary, index_tars
    from .run import PackSummary, pack
    from .settings import PackSettings
    from .stats.collect import StatsSummary, collect_stats
    from .stats.settings import StatsSettings
    from .verification import Problem, VerifyReport, verify

_HOMES = {
    "IndexSummary": "index",
    "PackSettings": "settings",
    "PackSummary": "run",
    "StatsSettings": "stats.settings",
    "StatsSummary": "stats.collect",
    "collect_stats": "stats.collect",
    "Problem": "verification",
    "VerifyReport": "verification",
    "index_tars": "index",
    "pack": "run",
    "verify": "verification",
}

__all__ = [
    "IndexSummary",
    "PackSettings",
    "PackSummary",
    "Problem",
    "StatsSettings",
    "StatsSummary",
    "VerifyReport",
    "collect_stats",
    "index_tars",
    "pack",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
