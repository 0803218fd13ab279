"""What is tested of workers when they come: that they have the packages of the client, in the client's versions.

Equal bytes need equal encoders, and a task that can't be imported would fail on every worker one after the other.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import cloudpickle
from uttershard.pipeline.errors import ConfigError

PACKAGES = {
    "uttershard": "uttershard.writers",
    "dask": "dask",
    "distributed": "distributed",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "fsspec": "fsspec",
    "soundfile": "soundfile",
    "soxr": "soxr",
    "xxhash": "xxhash",
    "miniaudio": "miniaudio",
}
"""Distributions that tasks use, and what is imported to see that they work."""

_OF_SCHEDULER = ("uttershard", "dask", "distributed")
"""What the scheduler needs: it reads tasks, and runs none."""


Stock = dict[str, tuple[str | None, str | None]]
"""Version and trouble of each package, as `take_stock` returns them."""


def take_stock(packages: Mapping[str, str]) -> Stock:
    """Return, of Python and each package, its version (None if there is none) and why it can't be imported.

    Sent to workers by its code, since a worker without uttershard could not look it up by name.
    """
    import importlib
    import importlib.metadata
    import platform

    python = ".".join(platform.python_version_tuple()[:2])
    found: dict[str, tuple[str | None, str | None]] = {"python": (python, None)}
    for distribution, module in packages.items():
        version = next((one.version for one in importlib.metadata.distributions(name=distribution)), None)
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told to the person who can mend it)
            found[distribution] = (version, f"{type(error).__name__}: {error}")
        else:
            found[distribution] = (version, None)
    return found


def check_workers(client: Any) -> Stock:
    """Test all workers that are there, and the scheduler; return what those that come later are held against.

    Raises:
        OSError: The scheduler is gone.
        ConfigError: A package is missing or differs; all of them are named, with the worker.
    """
    of_scheduler = {name: PACKAGES[name] for name in _OF_SCHEDULER}
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        scheduler = client.run_on_scheduler(take_stock, of_scheduler)
        stocks = client.run(take_stock, dict(PACKAGES), on_error="return")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    here = take_stock(PACKAGES)
    problems = _differences("the scheduler", scheduler, {name: here[name] for name in scheduler})
    problems += [line for worker, stock in sorted(stocks.items()) for line in _differences(worker, stock, here)]
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ConfigError(
            "not all can do what this process can: " + "; ".join(problems[:10]) + more + ". Give them the same "
            "environment (for job queues, the option python: the interpreter of that environment)"
        )
    return here


@lru_cache(maxsize=1)
def problem_of(worker: str, expected: tuple[tuple[str, tuple[str | None, str | None]], ...]) -> str | None:
    """Say what this worker lacks of a stock, as items; None if nothing. It may have come after others were tested."""
    return "; ".join(_differences(worker, take_stock(PACKAGES), dict(expected))) or None


def _differences(worker: str, stock: Any, here: Mapping[str, tuple[str | None, str | None]]) -> list[str]:
    if isinstance(stock, OSError):
        return []  # it went away meanwhile; one that comes in its place is held against the stock before its first task
    if isinstance(stock, Exception):
        return [f"{worker}: {type(stock).__name__}: {stock}"]
    lines = []
    for name, (version, problem) in here.items():
        there, trouble = stock[name]
        if problem is not None:
            continue  # optional, and this process does without it
        if there != version:
            lines.append(f"{worker}: {name} is {there or 'missing'}, here it is {version}")
        elif trouble is not None:
            lines.append(f"{worker}: {name} can't be imported ({trouble})")
    return lines
