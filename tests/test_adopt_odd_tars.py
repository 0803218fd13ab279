"""Tars as other tools write them, and as they come to be by mistake: adopted, listed or refused, never misread."""

import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import read_errors
from test_adopt import encoded, loaded, write_tar
from uttershard.pipeline.dataset.tar import TarError
from uttershard.writers import index_tars, verify
from uttershard.writers.progress import Silent
from uttershard.writers.tar_files import walk_tar_file

LONG = "d/" * 60 + "x" * 120


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def gnu(path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, f"{LONG}.flac", encoded(0))
        add(tar, f"{LONG}.txt", b"hi")
        add(tar, "./b/c.flac", encoded(1))
        add(tar, "./b/c.txt")


def pax(path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all members"}) as tar:
        add(tar, f"{LONG}ü.flac", encoded(0), mtime=1.5)
        add(tar, f"{LONG}ü.txt", b"hi")


def folders(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        add(tar, "d", type=tarfile.DIRTYPE)
        add(tar, "d/a.flac", encoded(0))
        add(tar, "old/")
        add(tar, "._c.flac", b"what macOS adds")
        add(tar, "c.flac", encoded(1))


def links(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        add(tar, "a.flac", encoded(0))
        add(tar, "hard.flac", type=tarfile.LNKTYPE, linkname="a.flac")
        add(tar, "soft.flac", type=tarfile.SYMTYPE, linkname="a.flac")
        add(tar, "empty.flac")
        add(tar, "../up.flac", encoded(1))
        add(tar, "d.flac", encoded(2))


def sparse(kind: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        files = path.parent / f"files-{kind}"
        files.mkdir()
        with (files / "s.wav").open("wb") as file:  # so many holes that their map needs a block of its own
            for hole in range(40):
                file.seek(hole << 16)
                file.write(b"x" * 4096)
        (files / "a.flac").write_bytes(encoded(0))
        (files / "z.flac").write_bytes(encoded(1))
        members = ["a.flac", "s.wav", "z.flac"]
        subprocess.run(["tar", f"--format={kind}", "-Scf", str(path), "-C", str(files), *members], check=True)

    return write


def doubled(path: Path) -> None:
    whole = [("a.flac", encoded(0)), ("a.txt", b"1")]
    parts = [("b.flac", encoded(1)), ("c.flac", encoded(2)), ("b.txt", b"x"), ("b.json", b"{}")]
    write_tar(path, [*whole, *whole, *parts, ("d.txt", b"x"), ("e.flac", encoded(3)), ("d.flac", encoded(4))])


def without_end(path: Path) -> None:
    write_tar(path, [("a.flac", encoded(0))])
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data + bytes(-len(data) % 512))


def with_garbage(path: Path) -> None:
    write_tar(path, [("a.flac", encoded(0))])
    path.write_bytes(path.read_bytes() + b"garbage")


ODD: dict[str, tuple[Callable[[Path], None], set[str], set[str]]] = {
    "gnu": (gnu, {LONG, "b/c"}, set()),
    "pax": (pax, {f"{LONG}ü"}, set()),
    "folders": (folders, {"d/a", "c"}, set()),
    "links": (links, {"a", "d"}, {"hard", "soft", "empty", "../up"}),
    "gnu-sparse": (sparse("gnu"), {"a", "z"}, {"s"}),
    "pax-sparse": (sparse("posix"), {"a", "z"}, {"s"}),
    "doubled": (doubled, {"a", "c", "e"}, {"a", "b", "d"}),
    "endless": (without_end, {"a"}, set()),
    "garbage": (with_garbage, {"a"}, set()),
}
"""How it is made, which ids are adopted, and which are listed."""


def test_odd_tars(tmp_path: Path) -> None:
    for name, (make, _, _) in ODD.items():
        make(tmp_path / f"{name}.tar")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.tar")}
    notes = Notes()
    summary = index_tars([str(tmp_path)], unique_ids=True, max_errors=20, workers=1, progress=notes)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.tar")} == before
    good = {f"{name}/{key}" for name, (_, keys, _) in ODD.items() for key in keys}
    bad = sorted(f"{name}.tar:{key}" for name, (_, _, keys) in ODD.items() for key in keys)
    assert loaded(tmp_path).keys() == good
    assert sorted(error["source"] for error in read_errors(tmp_path)) == bad
    assert (summary.utterances, summary.refused) == (len(good), len(bad))
    assert verify(str(tmp_path), deep=True).ok
    assert [note.partition(": ")[2].split()[0] for note in sorted(notes.notes)] == ["its", "7"]
    reasons = {error["source"]: error["reason"] for error in read_errors(tmp_path)}
    assert "a hard link" in reasons["links.tar:hard"]
    assert reasons["links.tar:empty"] == "empty file"
    assert "leaves the folder" in reasons["links.tar:../up"]
    assert "a sparse file" in reasons["pax-sparse.tar:s"]
    assert reasons["doubled.tar:a"].startswith("the id is there twice: at offset 0 and at")
    assert reasons["doubled.tar:b"].startswith("its members are not adjacent")


def packed(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "a.flac", encoded(0))


def joined(path: Path) -> None:
    write_tar(path, [("a.flac", encoded(0))])
    path.write_bytes(path.read_bytes() + bytes(20_480) + path.read_bytes())


@pytest.mark.parametrize(
    ("make", "message"),
    [(packed, "packed with gzip.*unpack it first"), (joined, "another tar follows at byte 30720.*tar --concatenate")],
)
def test_what_would_lose_samples_is_refused(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "x.tar")
    with (tmp_path / "x.tar").open("rb") as file, pytest.raises(TarError, match=message):
        list(walk_tar_file(file, file.seek(0, 2), note=lambda _: None))


def test_an_empty_first_tar_does_not_say_whose_the_others_are(tmp_path: Path) -> None:
    tarfile.open(tmp_path / "a.tar", "w").close()
    folders(tmp_path / "b.tar")
    tars = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    assert index_tars(tars, out=str(tmp_path / "d"), workers=1).utterances == 2
