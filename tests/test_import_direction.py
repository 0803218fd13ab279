"""Imports go one way, so that each room can be understood with the ones below it and nothing else.

scripts -> writers -> pipeline
pipeline: loader -> reading -> {planning, storage} -> dataset -> remote -> errors;  features -> {planning, dataset}
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TOP = "uttershard"
PACKAGES = {"scripts": {"writers", "pipeline"}, "writers": {"pipeline"}, "pipeline": set()}
"""Each package, and those it may import."""

ROOMS = {
    "errors": set(),
    "remote": {"errors"},
    "dataset": {"remote", "errors"},
    "planning": {"dataset", "errors"},
    "storage": {"dataset", "remote", "errors"},
    "features": {"planning", "dataset", "errors"},
    "reading": {"planning", "storage", "dataset", "errors"},
    "loader": {"reading", "planning", "storage", "dataset", "remote", "errors"},
    "testing": {"loader", "reading"},
    "espnet": {"loader", "reading", "planning", "dataset", "errors"},
}
"""Each room of `pipeline`, and those it may import. `pipeline/__init__.py` stands above them all."""


@dataclass(frozen=True)
class Import:
    """One import of our own code; `target` is the dotted path below `uttershard`."""

    module: tuple[str, ...]
    target: tuple[str, ...]
    relative: bool
    where: str


def imports_of(source: str, module: tuple[str, ...], is_package: bool, path: str) -> Iterator[Import]:
    """Every import of uttershard in a module's source, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source, filename=path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = tuple(alias.name.split("."))
                if parts[0] == TOP and len(parts) > 1:
                    yield Import(module, parts[1:], False, f"{path}:{node.lineno}")
        elif isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                package = module if is_package else module[:-1]
                base = package[: len(package) - (node.level - 1)] + named
            elif named[0] == TOP:
                base = named[1:]
            else:
                continue
            # `from . import x` and `from uttershard import pipeline` name the module in the list.
            for alias in node.names:
                yield Import(module, (*base, alias.name), bool(node.level), f"{path}:{node.lineno}")


def complaint(found: Import) -> str | None:
    """What is wrong with an import, or None."""
    package, target = found.module[0], found.target[0]
    arrow = f"{found.where}: {'.'.join(found.module)} imports {'.'.join(found.target)}"
    if target not in PACKAGES:
        return f"{arrow}: not a package of {TOP}"
    if package != target:
        if found.relative:
            return f"{arrow}: across packages imports are absolute"
        return (
            None if target in PACKAGES[package] else f"{arrow}: {package} may import {sorted(PACKAGES[package])} only"
        )
    if not found.relative:
        return f"{arrow}: inside one package imports are relative"
    if package != "pipeline" or len(found.module) == 1:
        return None
    room, other = found.module[1], found.target[1]
    if room not in ROOMS:
        return f"{found.where}: a new room, {room}; say in ROOMS what it may import"
    return None if room == other or other in ROOMS[room] else f"{arrow}: {room} may import {sorted(ROOMS[room])} only"


def test_every_import_goes_one_way(repository: Path) -> None:
    seen = []
    for package in PACKAGES:
        for path in sorted((repository / package).rglob("*.py")):
            relative = path.relative_to(repository)
            is_package = path.name == "__init__.py"
            module = relative.parent.parts if is_package else relative.with_suffix("").parts
            seen += imports_of(path.read_text(encoding="utf-8"), module, is_package, str(relative))
    assert len(seen) > 20, "the walk over the modules found next to nothing"
    problems = sorted({problem for found in seen if (problem := complaint(found))})
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("pipeline.loader.plain", "from ..reading.spans import read", True),
        ("pipeline.reading.spans", "from ..loader import plain", False),
        ("pipeline.planning.plan", "from .. import storage", False),
        ("pipeline.planning.plan", "from .frames import count_frames", True),
        ("pipeline.dataset.tar", "from ..errors import DataError", True),
        ("pipeline.dataset.tar", "def late():\n    from ..planning import frames", False),
        ("pipeline.dataset.tar", "import uttershard.pipeline.errors", False),
        ("writers.pack", "from uttershard.pipeline.dataset import tar", True),
        ("writers.pack", "from ..pipeline.dataset import tar", False),
        ("writers.pack", "from uttershard.scripts import cli", False),
        ("pipeline.loader.plain", "import uttershard.writers", False),
        ("scripts.cli.main", "from uttershard.writers import pack", True),
        ("scripts.cli.main", "from ..benchmarks import table", True),
        ("pipeline.sideroom.new", "from ..errors import DataError", False),
        ("writers.pack", "import numpy, os.path\nfrom collections import abc", True),
    ],
)
def test_the_rule_itself(module: str, source: str, allowed: bool) -> None:
    found = imports_of(source, tuple(module.split(".")), False, "here.py")
    assert ([problem for one in found if (problem := complaint(one))] == []) is allowed
