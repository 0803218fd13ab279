"""Ctrl-C where Python would lose it, or leave the lock of all imports held: it comes a little later."""

import importlib
import os
import signal
import threading
from pathlib import Path

import pytest
from distributed.gc import GCDiagnosis
from uttershard.writers.cluster import kept_interrupts

LIMIT_SECONDS = 60

PRESS = "import os, signal; os.kill(os.getpid(), signal.SIGINT); {name} = True\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def wait() -> None:
    threading.Event().wait(LIMIT_SECONDS)
    pytest.fail("it was lost")


def test_in_an_import(modules: Path) -> None:
    # Pressed once: of two, the second would come when the first has left the block.
    (modules / "pressed_in.py").write_text("import pressed_below; is_whole = True\n")
    (modules / "pressed_below.py").write_text(PRESS.format(name="is_whole"))
    with pytest.raises(KeyboardInterrupt), kept_interrupts():
        module = importlib.import_module("pressed_in")
        assert module.is_whole
        assert module.pressed_below.is_whole
        wait()


def test_where_garbage_collections_are_counted() -> None:
    class Process:
        def memory_info(self) -> None:
            press()
            counted.append("once")
            raise ZeroDivisionError  # enough was seen

    counted: list[str] = []
    diagnosis = GCDiagnosis()  # type: ignore[no-untyped-call]
    diagnosis._proc = Process()
    with pytest.raises(KeyboardInterrupt), kept_interrupts():
        with pytest.raises(ZeroDivisionError):
            diagnosis._gc_callback("start", {"generation": 2})  # type: ignore[no-untyped-call]
        assert counted
        wait()


def test_elsewhere_at_once_and_in_the_end_as_before(modules: Path) -> None:
    """Also where all of it is called by a module that is being imported."""
    before = signal.getsignal(signal.SIGINT)
    (modules / "a_script.py").write_text(
        "from uttershard.writers.cluster import kept_interrupts\n"
        "with kept_interrupts():\n    " + PRESS.format(name="is_over") + "    raise ZeroDivisionError\n"
    )
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("a_script")
    assert signal.getsignal(signal.SIGINT) is before
