"""Which rank of how many this process is: arguments, else torch.distributed, else RANK and WORLD_SIZE, else 0 of 1."""

import os

import torch.distributed

from ..errors import ShardingError


def find_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world_size) of this process.

    Arguments win. With model parallelism they are those of the data-parallel group, so a world size given here has to
    divide that of the process group, and is refused otherwise.

    Raises:
        ShardingError: They contradict the process group or each other.
    """
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ShardingError(f"{given} is given without {missing}: give both, or neither to have them found")
    real = _process_group() or _environment()
    if rank is None or world_size is None:
        return real or (0, 1)
    if real is not None and real[1] % max(1, world_size) != 0:
        raise ShardingError(
            f"world_size={world_size}, but {real[1]} processes are running: give the real world size, or the size of "
            "the data-parallel group, which divides it"
        )
    return rank, world_size


def _process_group() -> tuple[int, int] | None:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _environment() -> tuple[int, int] | None:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return None
    try:
        return int(rank or ""), int(world_size or "")
    except ValueError:
        raise ShardingError(
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} in the environment: both must be whole numbers (torchrun "
            "sets them), or neither be set"
        ) from None
