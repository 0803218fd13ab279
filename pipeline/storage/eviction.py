"""Room in a cache: files left by killed jobs go first, then the tars used longest ago.

Safe for readers: whoever has an evicted tar mapped goes on reading it; the disk gets the room back when they let go.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

from .cache_files import FULL, CacheFolder, Entry, remove_stale_part


def make_room(
    folder: CacheFolder, nbytes: int, limit: int | None, keep: Collection[str], reserve: Callable[[], None]
) -> tuple[bool, int]:
    """Evict until there is room for a file, then reserve it. Call with the folder locked.

    Args:
        folder: The cache.
        nbytes: Size of the file.
        limit: Most that the cache may hold; None for what the disk has.
        keep: Digests of tars that must stay: to evict what will be read soon only to fetch it again helps nobody.
        reserve: Takes the room on the disk; raises OSError if there is none.

    Returns:
        Whether there is room now, and how many tars were evicted.
    """
    entries = folder.entries()
    total = sum(entry.nbytes for entry in entries)
    victims = iter(_in_order(entries, keep))
    evicted = 0
    while True:
        if limit is None or total + nbytes <= limit:
            try:
                reserve()
            except OSError as error:
                if error.errno not in FULL:
                    raise
            else:
                return True, evicted
        victim = next((entry for entry in victims if remove(entry)), None)
        if victim is None:
            return False, evicted
        total -= victim.nbytes
        evicted += not victim.is_part


def shrink(folder: CacheFolder, limit: int) -> list[Entry]:
    """Evict until the cache holds no more than so much, and whatever killed jobs left; return what is gone."""
    with folder.locked():
        entries = folder.entries()
        total = sum(entry.nbytes for entry in entries)
        gone = []
        for entry in _in_order(entries, ()):
            if (entry.is_part or total > limit) and remove(entry):
                gone.append(entry)
                total -= entry.nbytes
        return gone


def remove(entry: Entry) -> bool:
    """Remove a file, unless somebody is fetching it; return whether it is gone."""
    if entry.is_part:
        return remove_stale_part(entry.path)
    with suppress(PermissionError):  # another user's, in a folder where only owners may remove
        entry.path.unlink(missing_ok=True)
        return True
    return False


def _in_order(entries: list[Entry], keep: Collection[str]) -> list[Entry]:
    victims = [entry for entry in entries if entry.is_part or entry.digest not in keep]
    return sorted(victims, key=lambda entry: (not entry.is_part, entry.last_used))
