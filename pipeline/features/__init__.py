"""From padded audio to features, on the device where the batch is: batched, and blind to padding.

    batch.audio, batch.audio_lengths --Fbank, LogMel--> features, feature_lengths --SpecAugment, ...Cmvn--> the same

Every transform is a module that is called with a padded batch and its lengths and returns the same pair. What it gives
for an utterance depends on the samples of that utterance alone: not on how far the batch is padded, with what, or on
its neighbours. What is random takes `keys` and `epoch` as well and is a hash of (seed, epoch, id): the same on any
rank, in any worker, in any order.
"""

from .bank import AudioBank
from .cmvn import GlobalCmvn, UtteranceCmvn
from .fbank import Fbank
from .log_mel import LogMel
from .noise import MixNoise
from .resample import Resample
from .reverberation import Reverberate
from .spec_augment import SpecAugment
from .speed_perturb import SpeedPerturb

__all__ = [
    "AudioBank",
    "Fbank",
    "GlobalCmvn",
    "LogMel",
    "MixNoise",
    "Resample",
    "Reverberate",
    "SpecAugment",
    "SpeedPerturb",
    "UtteranceCmvn",
]
