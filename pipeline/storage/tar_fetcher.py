"""Fetch whole tars into a cache in the background: those asked for now, then those of the window, in order.

                    locked by another process: looked at again later
                   /
    wanted --> lock part --> make room --> ranged reads side by side --> digest right? --> rename
                                  \\                                          \\
                                   no room, not writable: unavailable          fetch once more, then DataError
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import wait

from ..dataset.digest import is_of_bytes
from ..errors import DataError, StorageError, UttershardError
from ..remote.faults import first_line
from ..remote.transfer import Chunks
from .cache_files import CacheFolder, Part, lock_part
from .coalesce import pieces
from .eviction import make_room
from .threads import FetchThreads

logger = logging.getLogger("uttershard")

TARS_AT_A_TIME = 4
"""Of each process: enough that small tars, too, keep all requests busy."""
REQUESTS_IN_FLIGHT = 16
_LOOK_AGAIN_SECONDS = 0.05


class TarFetcher:
    """Brings tars into a cache. Of one process.

    Args:
        folder: The cache.
        limit: Most that the cache may hold; None for what the disk has.
        addresses: Address of each shard's tar, for messages.
        digests: Its digest.
        sizes: Its bytes.
        fetch: Returns bytes [start, stop) of a shard's tar.
    """

    def __init__(
        self,
        folder: CacheFolder,
        limit: int | None,
        addresses: Sequence[str],
        digests: Sequence[str],
        sizes: Sequence[int],
        fetch: Callable[[int, int, int], Chunks],
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._addresses = addresses
        self._digests = digests
        self._sizes = sizes
        self._fetch = fetch
        self._threads = FetchThreads(REQUESTS_IN_FLIGHT, "uttershard-tar-range")
        self._changed = threading.Condition()
        self._wanted: dict[int, None] = {}
        self._busy: set[int] = set()
        self._keep: frozenset[str] = frozenset()
        self._errors: dict[int, UttershardError] = {}
        self._unavailable: set[int] = set()
        self._workers = 0
        self._warned = False
        self.counts: Counter[str] = Counter()

    def schedule(self, shards: Iterable[int]) -> None:
        """Bring these in, in this order, and nothing that was scheduled before; keep them."""
        with self._changed:
            self._wanted = dict.fromkeys(shards)
            self._keep = frozenset(self._digests[shard] for shard in self._wanted)
            self._unavailable.clear()
            self._start_workers()
            self._changed.notify_all()

    def wait_for(self, shards: Collection[int], seconds: float) -> None:
        """Bring these in first, and wait until each is here or is known not to come, or the time is up.

        Raises:
            DataError: What the store has is not what the manifest lists.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while missing := [shard for shard in shards if not self._is_settled(shard)]:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                # Again and again: another process may throw out a tar that has just come.
                first = [shard for shard in missing if shard not in self._busy]
                self._wanted = dict.fromkeys([*first, *self._wanted])
                self._start_workers()
                self._changed.notify_all()
                self._changed.wait(min(left, _LOOK_AGAIN_SECONDS))
            for shard in shards:
                if shard in self._errors:
                    raise self._errors[shard]

    def is_unavailable(self, shard: int) -> bool:
        """Whether a tar can't come into the cache for now."""
        return shard in self._unavailable

    def take_counts(self) -> Counter[str]:
        """Return the counts since this was called last."""
        with self._changed:
            counts, self.counts = self.counts, Counter()
        return counts

    def _is_settled(self, shard: int) -> bool:
        return shard in self._errors or shard in self._unavailable or self._here(shard)

    def _here(self, shard: int) -> bool:
        return self._folder.has(self._digests[shard], self._sizes[shard])

    def _start_workers(self) -> None:
        while self._workers < min(TARS_AT_A_TIME, len(self._wanted)):
            self._workers += 1
            name = f"uttershard-tar-{self._workers}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    # Others are started when there is more to do: a waiting one would keep a dropped loader alive.
                    self._workers -= 1
                    return
                shard = next(iter(self._wanted))
                del self._wanted[shard]
                self._busy.add(shard)
            done = False
            try:
                done = self._bring(shard)
            except UttershardError as error:
                self._fail(shard, error)
                done = True
            except OSError as error:
                self._give_up(shard, f"can't be written ({error.strerror or error})")
                done = True
            except Exception as error:  # noqa: BLE001 - whoever waits for the tar has to know
                self._fail(shard, UttershardError(f"{self._addresses[shard]}: fetching it failed: {first_line(error)}"))
                done = True
            finally:
                with self._changed:
                    self._busy.discard(shard)
                    self._changed.notify_all()
                    if not done:
                        self._wanted[shard] = None  # at the end: others first
                        self._changed.wait(_LOOK_AGAIN_SECONDS)

    def _bring(self, shard: int) -> bool:
        """Bring a tar in; False if another process is at it."""
        digest, size = self._digests[shard], self._sizes[shard]
        if self._here(shard):
            return True
        self._folder.path.mkdir(parents=True, exist_ok=True)
        part = lock_part(self._folder, digest)
        if part is None:
            return False
        try:
            if self._here(shard):
                part.discard()
                return True
            with self._folder.locked():
                room, evicted = make_room(
                    self._folder, size, self._limit, {*self._keep, digest}, lambda: part.reserve(size)
                )
            with self._changed:
                self.counts["evictions"] += evicted
            if not room:
                part.discard()
                self._give_up(shard, "has no room for more: the disk is full, or cache_bytes too small")
                return True
            self._fill(part, shard)
            return True
        except BaseException:
            part.discard()
            raise
        finally:
            part.close()

    def _fill(self, part: Part, shard: int) -> None:
        for _ in range(2):
            waiting = [self._threads.submit(self._copy(part, shard, *piece)) for piece in pieces(self._sizes[shard])]
            try:
                for piece in waiting:
                    piece.result()
            finally:
                for piece in waiting:
                    piece.cancel()
                wait(waiting)  # those that run write to the part, which must be open until they end
            if not is_of_bytes(self._digests[shard]):
                # Adopted without being read: each span is held against its own header when it is decoded.
                self._admit(part)
                return
            found = part.digest()
            if found == self._digests[shard]:
                self._admit(part)
                return
            with self._changed:
                self.counts["refetched"] += 1
        raise DataError(
            f"{self._addresses[shard]}: came with digest {found} twice, the manifest says {self._digests[shard]}: it "
            "is damaged in the store, or was replaced. Copy it there again, or pack it again"
        )

    def _admit(self, part: Part) -> None:
        # Under the lock: whoever lists the folder to make room would otherwise miss a file that is being renamed.
        with self._folder.locked():
            part.admit()

    def _copy(self, part: Part, shard: int, start: int, stop: int) -> Callable[[], None]:
        return lambda: part.write(start, self._fetch(shard, start, stop))

    def _fail(self, shard: int, error: UttershardError) -> None:
        with self._changed:
            if isinstance(error, StorageError):
                # Reading its spans will tell, with the utterances that are missed.
                self._unavailable.add(shard)
            else:
                self._errors[shard] = error

    def _give_up(self, shard: int, why: str) -> None:
        with self._changed:
            self._unavailable.add(shard)
            tell, self._warned = not self._warned, True
        if tell:
            logger.warning("the cache %s %s: reading from the store instead (said once)", self._folder.path, why)
