"""Where tasks run: Dask workers on this machine or on a cluster. Dask is the engine; there is no scheduler of our own.

settings (what was asked for) -> start (a cluster, its workers tested by `workers`) -> tasks (run, retried elsewhere)
                                 `ahead` does that beside other work
"""

from .ahead import started_ahead, started_when_needed
from .interrupts import kept_interrupts
from .settings import ClusterSettings, cluster_settings, read_cluster_config
from .start import start_cluster
from .tasks import Cluster, TasksFailedError

__all__ = [
    "Cluster",
    "ClusterSettings",
    "TasksFailedError",
    "cluster_settings",
    "kept_interrupts",
    "read_cluster_config",
    "start_cluster",
    "started_ahead",
    "started_when_needed",
]
