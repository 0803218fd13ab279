"""The reading side of uttershard: open a dataset, plan epochs, stream batches into training.

Names are loaded on first use, so that the parts which need no torch (planning, the format) can be imported without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset.shardset import ShardSet as ShardSet
    from .features.cmvn import GlobalCmvn as GlobalCmvn
    from .features.cmvn import UtteranceCmvn as UtteranceCmvn
    from .features.fbank import Fbank as Fbank
    from .features.log_mel import LogMel as LogMel
    from .features.resample import Resample as Resample
    from .features.spec_augment import SpecAugment as SpecAugment
    from .loader.mix import Mix as Mix
    from .loader.mix import Part as Part
    from .loader.shard_loader import ShardLoader as ShardLoader
    from .loader.utterance_dataset import UtteranceDataset as UtteranceDataset
    from .planning.plan import EpochPlan as EpochPlan
    from .planning.plan import plan_epoch as plan_epoch
    from .planning.rotation import shard_index as shard_index
    from .reading.batch import Batch as Batch
    from .reading.processing import Utterance as Utterance

_HOMES = {
    "Batch": ".reading.batch",
    "EpochPlan": ".planning.plan",
    "Fbank": ".features.fbank",
    "GlobalCmvn": ".features.cmvn",
    "LogMel": ".features.log_mel",
    "Mix": ".loader.mix",
    "Part": ".loader.mix",
    "Resample": ".features.resample",
    "ShardLoader": ".loader.shard_loader",
    "ShardSet": ".dataset.shardset",
    "SpecAugment": ".features.spec_augment",
    "Utterance": ".reading.processing",
    "UtteranceCmvn": ".features.cmvn",
    "UtteranceDataset": ".loader.utterance_dataset",
    "plan_epoch": ".planning.plan",
    "shard_index": ".planning.rotation",
}

__all__ = [
    "Batch",
    "EpochPlan",
    "Fbank",
    "GlobalCmvn",
    "LogMel",
    "Mix",
    "Part",
    "Resample",
    "ShardLoader",
    "ShardSet",
    "SpecAugment",
    "Utterance",
    "UtteranceCmvn",
    "UtteranceDataset",
    "plan_epoch",
    "shard_index",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
