"""What kind of cluster a job runs on: from `--cluster` and `--workers`, or a `parallel:` block in YAML.

parallel:
  env: slurm
  n_workers: 16
  options: {queue: cpu, cores: 4, memory: 16GB, walltime: "02:00:00"}
"""

import dataclasses
import inspect
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from uttershard.pipeline.errors import ConfigError

JOB_QUEUES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "htcondor": "HTCondorCluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
}
"""The class of dask-jobqueue for each."""

ENVS = ("local", *JOB_QUEUES, "ssh", "kubernetes")

_OURS = frozenset({"self", "loop", "asynchronous", "n_workers", "job_cls", "scheduler_cls", "worker_class", "kwargs"})
"""Parameters of Dask's classes that are not options: we set them, or they are no values that YAML could hold."""


@dataclass(frozen=True)
class ClusterSettings:
    """Which cluster, how many workers, and the options of the Dask class that starts it.

    Raises:
        ConfigError: An unknown `env` or option, a number out of range, or a package that is not installed.

    Example:
        >>> ClusterSettings(n_workers=2).env
        'local'
    """

    env: str = "local"
    """One of ENVS, or the address of a scheduler that runs: `tcp://host:port`."""
    n_workers: int | None = None
    """Worker processes; None: one for each CPU core (`local`), all that are there (an address), one for each host
    but the first, or on that if it is the only one (`ssh`; times its `worker_options.n_workers`). With an address: at
    most so many tasks at a time."""
    min_workers: int | None = None
    """Job queues and Kubernetes: the cluster may shrink to so many when there is little to do; None: n_workers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the Dask class, as its documentation has them."""
    dashboard: bool = False
    """Whether Dask's dashboard is on; its address is told to `Progress.note`."""
    start_seconds: float | None = None
    """How long to wait for the first worker, or for any worker once all are lost; None: an hour, since jobs may queue,
    and three minutes for `local`, where nothing does: its workers can't start, or die as they do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", dict(self.options))
        if not self.is_address and self.env not in ENVS:
            raise ConfigError(f"cluster is {self.env!r}; it can be {', '.join(ENVS)}, or an address: tcp://host:port")
        for name, value, least in (("n_workers", self.n_workers, 1), ("min_workers", self.min_workers, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(f"{name} is {value!r}; it must be an integer of {least} or more")
        if self.n_workers is None and (self.env in JOB_QUEUES or self.env == "kubernetes"):
            raise ConfigError(f"say how many workers {self.env} is to start: n_workers in YAML, --workers")
        if self.min_workers is not None and self.env not in (*JOB_QUEUES, "kubernetes"):
            raise ConfigError(f"min_workers is for batch systems and kubernetes; {self.env} keeps all of its workers")
        if self.min_workers is not None and (self.n_workers is None or self.min_workers > self.n_workers):
            raise ConfigError(f"min_workers is {self.min_workers}; it can't be above n_workers ({self.n_workers})")
        seconds = self.start_seconds
        if seconds is not None and not (type(seconds) in (int, float) and seconds > 0):
            raise ConfigError(f"start_seconds is {seconds!r}; it must be a number of seconds, more than 0")
        if not isinstance(self.dashboard, bool):
            raise ConfigError(f"dashboard is {self.dashboard!r}; it can be true or false")
        known = self.known_options()
        unknown = [name for name in self.options if name not in known]
        if unknown:
            listed = ", ".join(known) if known else "none"
            raise ConfigError(f"cluster {self.env!r} has no option {unknown[0]!r}; it has: {listed}")
        self._check_values()

    def _check_values(self) -> None:
        """Refuse values that Dask takes for something else than what was meant."""
        hosts, walltime = self.options.get("hosts"), self.options.get("walltime")
        named = isinstance(hosts, list | tuple) and bool(hosts) and all(isinstance(host, str) for host in hosts)
        if self.env == "ssh" and not named:
            given = "" if hosts is None else f", a list of names (it is {hosts!r})"
            raise ConfigError(f"cluster 'ssh' needs the option hosts: the scheduler's first, then the workers'{given}")
        if not (walltime is None or isinstance(walltime, str)):
            # YAML reads 24:00:00 as 86400, which SLURM takes for minutes.
            raise ConfigError(f'walltime is {walltime!r}; write it in quotes: walltime: "24:00:00"')

    @property
    def is_address(self) -> bool:
        """Whether the scheduler runs already."""
        return "://" in self.env

    @property
    def patience_seconds(self) -> float:
        """`start_seconds`, or what it is if left out."""
        if self.start_seconds is not None:
            return self.start_seconds
        return 180.0 if self.env == "local" else 3600.0

    def known_options(self) -> list[str]:
        """Return the names of all options of this kind of cluster, sorted."""
        if self.is_address:
            return []
        names: set[str] = set()
        for function in self._constructors():
            names |= set(inspect.signature(function).parameters)
        return sorted(names - _OURS - {name for name in names if name.endswith("kwargs")})

    def _constructors(self) -> tuple[Callable[..., Any], ...]:
        cluster = cluster_class(self.env)
        if self.env == "local":
            from distributed import Nanny, Worker

            return cluster.__init__, Nanny.__init__, Worker.__init__
        if self.env in JOB_QUEUES:
            from dask_jobqueue.core import Job

            return cluster.__init__, cluster.job_cls.__init__, Job.__init__
        return (cluster,) if self.env == "ssh" else (cluster.__init__,)


def cluster_class(env: str) -> Any:
    """Return the Dask class (a function for `ssh`) of a kind of cluster.

    Raises:
        ConfigError: Its package is not installed.
    """
    try:
        if env in JOB_QUEUES:
            return getattr(_dask_jobqueue(), JOB_QUEUES[env])
        if env == "kubernetes":
            from dask_kubernetes.operator import KubeCluster

            return KubeCluster
        if env == "ssh":
            # The class needs asyncssh only when it connects: say so now.
            import asyncssh  # noqa: F401
    except ImportError as error:
        extra = "kubernetes" if env == "kubernetes" else "cluster"
        raise ConfigError(
            f"cluster {env!r} needs a package that is not installed ({error}): pip install 'uttershard[{extra}]'"
        ) from error
    import distributed

    return distributed.SSHCluster if env == "ssh" else distributed.LocalCluster


def _dask_jobqueue() -> Any:
    """Import it, and take back SIGINT, which it gives a handler that ends the process without a word, with status 0."""
    handler = signal.getsignal(signal.SIGINT)
    import dask_jobqueue

    if handler is not None and signal.getsignal(signal.SIGINT) is not handler:
        signal.signal(signal.SIGINT, handler)
    return dask_jobqueue


def cluster_settings(cluster: ClusterSettings | str | None, workers: int | None) -> ClusterSettings:
    """Return settings out of what a caller gave: whole settings, or a name or address, and a number of workers."""
    if isinstance(cluster, ClusterSettings):
        return cluster if workers is None else dataclasses.replace(cluster, n_workers=workers)
    return ClusterSettings(env=cluster or "local", n_workers=workers)


def read_cluster_config(path: str) -> ClusterSettings:
    """Read the `parallel:` block of a YAML file.

    Raises:
        ConfigError: It can't be read, has no such block, or the block an unknown or unfit entry.
    """
    try:
        body = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: no YAML that can be read ({error})") from error
    block = body.get("parallel") if isinstance(body, dict) else None
    known = [item.name for item in dataclasses.fields(ClusterSettings)]
    if not isinstance(block, dict):
        raise ConfigError(f"{path}: no `parallel:` block with {', '.join(known)}")
    unknown = [name for name in block if name not in known]
    if unknown:
        raise ConfigError(f"{path}: `parallel:` has no entry {unknown[0]!r}; it has: {', '.join(known)}")
    options = block.get("options") or {}
    if not isinstance(options, dict) or not isinstance(block.get("env", "local"), str):
        raise ConfigError(f"{path}: `env` must be a string and `options` a mapping of names to values")
    try:
        return ClusterSettings(**{**block, "options": options})
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
