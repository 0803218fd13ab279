"""Files that go to disk while they are written: their bytes, and what the disk says."""

import errno
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uttershard.pipeline.errors import StorageError
from uttershard.writers import synced_file
from uttershard.writers.commit import NoSpaceError, atomic_write
from uttershard.writers.synced_file import SyncedFile

PIECES = st.lists(st.integers(0, 20_000), max_size=30)


@settings(max_examples=40, deadline=None)
@given(sizes=PIECES, every=st.integers(1, 30_000))
def test_all_that_was_written_is_there(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], every: int) -> None:
    path = tmp_path_factory.mktemp("synced") / "file"
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synced_file, "_SYNC_BYTES", every)
        with SyncedFile(path) as raw, io.BufferedWriter(raw) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            raw.sync()
    assert path.read_bytes() == b"".join(pieces)


def test_a_file_is_forced_to_disk_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []
    sync = os.fdatasync

    def counting(descriptor: int) -> None:
        forced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", counting)
    monkeypatch.setattr(synced_file, "_SYNC_BYTES", 1 << 20)
    with SyncedFile(tmp_path / "file") as raw:
        for _ in range(3):
            raw.write(bytes(1 << 20))
            assert raw._syncing is not None
            raw._syncing.result(timeout=300)
    assert forced == [1 << 20, 2 << 20, 3 << 20]


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageError), (errno.ENOSPC, NoSpaceError)])
def test_what_the_disk_refuses_behind_the_writer_fails_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[StorageError]
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", refuse)
    monkeypatch.setattr(synced_file, "_SYNC_BYTES", 1 << 16)
    with pytest.raises(error, match="shard"), atomic_write(tmp_path / "shard.tar", tmp_path) as file:
        file.write(bytes(1 << 16))
    assert list(tmp_path.iterdir()) == []


def test_a_closed_file_refuses_writes(tmp_path: Path) -> None:
    raw = SyncedFile(tmp_path / "file")
    raw.write(bytes(synced_file._SYNC_BYTES + 1))
    raw.close()
    assert raw.closed
    with pytest.raises(ValueError, match="closed"):
        raw.write(b"more")
