"""Two users with one cache folder: what one has fetched serves the other, and nobody's rights stop anybody."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packed import run
from s3_cases import RemoteDataset, cached_tars
from s3_job import digest
from uttershard.pipeline.storage.cache_files import CacheFolder, lock_part

ALICE, BOB = 40_001, 40_002
"""Any two numbers. Whoever may not change users runs these tests as one."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users can get to."""
    path = Path(tempfile.mkdtemp(prefix="uttershard-cache-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def as_user(user: int, remote: RemoteDataset, cache: Path, umask: int = 0o077, **settings: Any) -> dict[str, Any]:
    """Stream an epoch as a user, in a child process; return a digest of it, counts of the storage, and warnings."""
    # Libraries may lie where other users can't read: have them here before.
    list(run(remote.loader(), 0))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            _become(user, umask)
            log = _Warnings()
            logging.getLogger("uttershard").addHandler(log)
            loader = remote.loader(cache=cache, **settings)
            seen = digest(loader, 0)
            result = {"digest": seen, **loader.metrics()["storage"], "warnings": log.lines}
            os.write(writer, json.dumps(result).encode())
        except BaseException:  # noqa: BLE001 - a forked child must not run on into the tests
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        result = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(result)


def _become(user: int, umask: int) -> None:
    os.umask(umask)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def test_what_one_user_has_fetched_serves_the_other(remote: RemoteDataset, folder: Path) -> None:
    expected = digest(remote.packed.loader(), 0)
    first, second = (as_user(user, remote, folder) for user in (ALICE, BOB))
    assert first["digest"] == second["digest"] == expected
    assert first["fetched_bytes"] >= remote.tar_bytes() and second["requests"] == 0
    cached_tars(folder)[0].unlink()
    third = as_user(BOB, remote, folder)
    assert third["digest"] == expected and third["warnings"] == []
    assert len(cached_tars(folder)) == 8


@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["owners remove", "all remove"])
def test_what_a_killed_job_of_another_user_has_left(remote: RemoteDataset, folder: Path, mode: int) -> None:
    folder.chmod(mode)
    child = os.fork()
    if not child:
        try:
            _become(ALICE, 0o022)
            for shard in remote.shards().manifest.shards[:4]:
                lock_part(CacheFolder(folder), shard.tar_digest)
            (folder / "lock").touch()
        except BaseException:  # noqa: BLE001 - a forked child must not run on into the tests
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(folder.glob("*.part"))) == 4
    result = as_user(BOB, remote, folder)
    assert result["digest"] == digest(remote.packed.loader(), 0)
    # What he may not remove he reads from the store, and says so.
    stuck = mode == 0o1777 and os.geteuid() == 0
    assert len(cached_tars(folder)) == (4 if stuck else 8)
    assert len(result["warnings"]) == (1 if stuck else 0)


def test_another_users_tar_that_was_cut_or_damaged(remote: RemoteDataset, folder: Path) -> None:
    as_user(ALICE, remote, folder)
    cut, damaged, *_ = cached_tars(folder)
    os.truncate(cut, 1000)
    damaged.chmod(0o644)
    rotten = bytearray(damaged.read_bytes())
    rotten[2000] ^= 1
    damaged.write_bytes(rotten)
    damaged.chmod(0o444)
    result = as_user(BOB, remote, folder, read_deadline=20.0)
    assert result["digest"] == digest(remote.packed.loader(), 0)


def test_a_folder_of_one_user_is_read_by_the_other(remote: RemoteDataset, folder: Path) -> None:
    as_user(ALICE, remote, folder / "cache", 0o022)
    for path in cached_tars(folder / "cache")[:4]:
        path.unlink()
    result = as_user(BOB, remote, folder / "cache")
    assert result["digest"] == digest(remote.packed.loader(), 0)
    assert result["cache_hits"] > 0
    if os.geteuid() == 0:
        (warning,) = result["warnings"]
        assert "can't be written (Permission denied): reading from the store instead" in warning
        assert len(cached_tars(folder / "cache")) == 4
