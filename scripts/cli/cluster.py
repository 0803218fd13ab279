"""Options of all commands that run on workers: where, how many, how often again."""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer
from uttershard.pipeline.errors import ConfigError
from uttershard.writers.cluster.settings import ENVS, ClusterSettings, cluster_settings, read_cluster_config

ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", help=f"Where to run: {', '.join(ENVS)}, or a scheduler's address (tcp://host:port)."),
]
ClusterConfig = Annotated[
    str | None,
    typer.Option(help="YAML file with a `parallel:` block (env, n_workers, options), in place of --cluster."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Worker processes; without it, one for each CPU core. Batch systems and Kubernetes need it; of a "
        "scheduler that runs, it bounds the tasks at a time."
    ),
]
Retries = Annotated[
    int, typer.Option(help="How often a task is given to another worker when its worker died or a read failed.")
]
Dashboard = Annotated[bool, typer.Option("--dashboard", help="Run Dask's dashboard and print its address.")]


def chosen_cluster(name: str | None, config: str | None, workers: int | None, dashboard: bool) -> ClusterSettings:
    """Return the cluster that the options say; `--workers` and `--dashboard` win over the file."""
    if name is not None and config is not None:
        raise ConfigError("--cluster and --cluster-config both say where to run: leave one out")
    if config is None:
        return ClusterSettings(env=name or "local", n_workers=workers, dashboard=dashboard)
    settings = cluster_settings(read_cluster_config(config), workers)
    return dataclasses.replace(settings, dashboard=dashboard or settings.dashboard)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Tell how far a job got that Ctrl-C or SIGTERM has stopped, and end its workers.

    click would end without a word on the first, and Python on the second, which is what batch systems send to a job
    whose time is over.
    """
    received = signal.SIGINT

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(f"uttershard: {_told(stop)}", err=True)
        raise typer.Exit(128 + received) from None  # as a shell has it
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(stop: BaseException | None) -> str:
    """Return the words of a stop: Python's own interrupts have none, nor has a second Ctrl-C while a cluster ends."""
    while stop is not None:
        if isinstance(stop, KeyboardInterrupt) and str(stop):
            return str(stop)
        stop = stop.__context__
    return "stopped: what is finished is kept. Run the same command again to go on"
