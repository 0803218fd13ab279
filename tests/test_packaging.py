"""What is installed: every package, one version, and a start that does not wait for torch."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

PACKAGE_ROOTS = ("pipeline", "writers", "scripts")
HEAVY = ("torch", "torchaudio", "webdataset")


@pytest.fixture(scope="module")
def pyproject(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_on_disk_is_named_in_pyproject(repository: Path, pyproject: dict) -> None:
    on_disk = {
        "uttershard." + ".".join(init.parent.relative_to(repository).parts)
        for root in PACKAGE_ROOTS
        for init in (repository / root).rglob("__init__.py")
    }
    assert set(pyproject["tool"]["setuptools"]["packages"]) == on_disk


def test_no_module_lies_outside_a_package(repository: Path) -> None:
    stray = [
        str(module.relative_to(repository))
        for root in PACKAGE_ROOTS
        for module in (repository / root).rglob("*.py")
        if not (module.parent / "__init__.py").is_file()
    ]
    assert stray == []


def test_every_top_package_ships_its_type_marker(repository: Path, pyproject: dict) -> None:
    assert pyproject["tool"]["setuptools"]["package-data"] == {
        f"uttershard.{root}": ["py.typed"] for root in PACKAGE_ROOTS
    }
    assert all((repository / root / "py.typed").is_file() for root in PACKAGE_ROOTS)


def test_the_installed_version_is_the_one_in_pyproject(pyproject: dict) -> None:
    assert version("uttershard") == pyproject["project"]["version"]


def test_the_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="uttershard")
    assert callable(command.load())


def heavy_modules_after(code: str, cwd: Path) -> list[str]:
    """Run `code` in a fresh interpreter; return which heavy modules it imported."""
    report = f"import json, sys; json.dump([name for name in {HEAVY!r} if name in sys.modules], sys.stderr)"
    # Elsewhere than the checkout, so that the installed package is the one imported.
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "module",
    [
        "uttershard.writers",
        "uttershard.scripts.cli",
        "uttershard.pipeline.dataset",
        "uttershard.pipeline.planning",
        "uttershard.pipeline.reading.codecs",
    ],
)
def test_import_without_torch(module: str, tmp_path: Path) -> None:
    assert heavy_modules_after(f"import {module}", tmp_path) == []


def test_help_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['uttershard', '--help']\n"
        "from uttershard.scripts.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code"
    )
    assert heavy_modules_after(code, tmp_path) == []
