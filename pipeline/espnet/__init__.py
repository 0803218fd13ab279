"""For people who come from ESPnet: its batches, and loaders from its `training.yaml`.

    espnet_collate       utterances or a Batch --> (uids, {"speech", "speech_lengths", "text", "text_lengths"})
    loader_from_espnet   training.yaml of ESPnet3 --> ShardLoader, or an error that names what is wrong in it
    PlanSampler          frame budgets on the shards that ESPnet3's DataLoaderBuilder takes of an UtteranceDataset

The very batches of ESPnet2's samplers come with `ShardLoader(batch_type=…)`.
"""

from ..loader.plan_sampler import PlanSampler as PlanSampler
from .collate import espnet_collate as espnet_collate
from .training_yaml import loader_from_espnet as loader_from_espnet

__all__ = ["PlanSampler", "espnet_collate", "loader_from_espnet"]
