"""When reading span by span from a store is a bad idea, and what to set instead."""

from .settings import DEFAULT_PREFETCH_BYTES


def advice(epoch_bytes: float, utterances: int, prefetch_bytes: int = DEFAULT_PREFETCH_BYTES) -> str | None:
    """Return what to tell somebody who reads a remote dataset without a cache and without windows.

    Args:
        epoch_bytes: Of the tars that a rank reads in an epoch.
        utterances: In them.
        prefetch_bytes: What is fetched ahead.

    Returns:
        None where all of it is fetched ahead, and so in large requests.

    Example:
        >>> print(advice(10e9, 40_000))
        10.0 GB an epoch for each rank in random order from a store, without a cache or windows: about a request an \
utterance (250 KB). Set cache= (a folder on a fast disk), or windows=157 or more for large requests
        >>> str(advice(150e6, 600)).split(" for ")[0]
        '150.0 MB an epoch'
    """
    if epoch_bytes <= prefetch_bytes or not utterances:
        return None
    windows = -(-int(2 * epoch_bytes) // prefetch_bytes)
    size = f"{epoch_bytes / 1e9:.1f} GB" if epoch_bytes >= 1e9 else f"{epoch_bytes / 1e6:.1f} MB"
    return (
        f"{size} an epoch for each rank in random order from a store, without a cache or windows: "
        f"about a request an utterance ({epoch_bytes / utterances / 1e3:.0f} KB). Set cache= (a folder on a fast "
        f"disk), or windows={windows} or more for large requests"
    )
