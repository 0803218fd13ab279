"""Fetching in the background: budgets come back, threads end, locks and leftovers hold nobody up."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

from uttershard.pipeline.remote.transfer import Chunks
from uttershard.pipeline.storage.cache_files import CacheFolder, lock_part
from uttershard.pipeline.storage.eviction import make_room
from uttershard.pipeline.storage.prefetch import Prefetcher
from uttershard.pipeline.storage.tar_fetcher import TarFetcher

SIZE = 1_000
LIMIT_SECONDS = 60.0


def fetch(shard: int, start: int, stop: int) -> Chunks:
    return [memoryview(bytes([shard]) * (stop - start))]


def fetchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("uttershard-")}


def test_an_utterance_in_two_groups_leaves_no_budget_behind() -> None:
    prefetcher = Prefetcher(fetch, 3 * SIZE, LIMIT_SECONDS)
    first, second, third, twice = ((shard, 0, SIZE) for shard in range(4))
    # Of the first, only part has room; the others wait in the queue, and the utterance in both.
    for group in ([first, second, third], [first, twice], [second, twice]):
        prefetcher.announce(group)
    for group in ([first, second, third], [first, twice], [second, twice]):
        assert [bytes(view) for view in prefetcher.take(group)] == [bytes([key[0]]) * SIZE for key in group]
    assert prefetcher._held == 0
    assert not prefetcher._pieces


def test_threads_end_with_what_they_fetch_for(tmp_path: Path) -> None:
    before = fetchers()
    prefetcher = Prefetcher(fetch, 3 * SIZE, LIMIT_SECONDS)
    prefetcher.take([(0, 0, SIZE), (1, 0, SIZE)])
    tars = TarFetcher(CacheFolder(tmp_path), None, ["a", "b"], ["adopted:0", "adopted:1"], [SIZE, SIZE], fetch)
    tars.schedule([0, 1])
    tars.wait_for([0, 1], LIMIT_SECONDS)
    assert len(list(tmp_path.glob("*.tar"))) == 2
    started = fetchers() - before
    assert started
    del prefetcher, tars
    gc.collect()
    for thread in started:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive(), thread.name


def test_a_child_that_was_forked_under_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    waiting, release = os.pipe()
    with folder.locked():
        child = os.fork()
        if not child:
            os.close(release)
            os.read(waiting, 1)  # until the parent is done
            os._exit(0)
    with folder.locked():
        pass
    os.close(release)
    os.close(waiting)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_killed_job_had_reserved_counts_once(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    left = lock_part(folder, "xxh3_128:0")
    assert left is not None
    left.reserve(SIZE)
    left.close()
    part = lock_part(folder, "xxh3_128:0")
    assert part is not None
    assert make_room(folder, SIZE, SIZE + SIZE // 2, (), lambda: part.reserve(SIZE)) == (True, 0)
    part.close()
