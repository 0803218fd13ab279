"""Writers: Dask jobs that pack a corpus into tar shards with length sidecars. Never imports torch.

Names are imported when they are used, so that `import uttershard.writers` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exports.run import ExportSummary, export
    from .index import IndexSummary, index_tars
    from .merging import MergeSummary, merge
    from .run import PackSummary, pack
    from .selection import SubsetSummary, subset
    from .settings import PackSettings
    from .stats.collect import StatsSummary, collect_stats
    from .stats.settings import StatsSettings
    from .verification import Problem, VerifyReport, verify

_HOMES = {
    "ExportSummary": "exports.run",
    "MergeSummary": "merging",
    "SubsetSummary": "selection",
    "export": "exports.run",
    "merge": "merging",
    "subset": "selection",
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
    "ExportSummary",
    "IndexSummary",
    "MergeSummary",
    "PackSettings",
    "PackSummary",
    "Problem",
    "StatsSettings",
    "StatsSummary",
    "SubsetSummary",
    "VerifyReport",
    "collect_stats",
    "export",
    "index_tars",
    "merge",
    "pack",
    "subset",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
