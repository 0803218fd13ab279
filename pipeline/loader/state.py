"""The state of a loader: what the trainer has consumed, as JSON under 1 KB; equal on all ranks.

{"format": "uttershard.loader", "version": 1,
 "dataset": <dataset digest>, "seed": 0, "world_size": 8, "total_shards": 8,
 "filters": <digest>, "batching": <digest>, …        what the plan depends on
 "epoch": 3, "step": 1207}                           the next batch is step 1207 of epoch 3
"""

import json
from collections.abc import Mapping
from typing import Any

from ..dataset.digest import digest_bytes
from ..errors import ConfigError

FORMAT = "uttershard.loader"
VERSION = 1

_LONGEST_TEXT = 120
"""A longer setting (a long `where`) is kept as its digest, so that the state stays under 1 KB."""


def encode_state(plan_settings: Mapping[str, Any], epoch: int, step: int) -> dict[str, Any]:
    """Return the state before `step` of `epoch`.

    Args:
        plan_settings: All that the plan depends on, besides the epoch: JSON values by name.
        epoch: Epoch of the next batch.
        step: Step of the next batch.
    """
    return {"format": FORMAT, "version": VERSION, **_short(plan_settings), "epoch": epoch, "step": step}


def decode_state(state: Mapping[str, Any], plan_settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return (epoch, step) of a state, if it belongs to this dataset and these settings.

    Raises:
        ConfigError: It does not; the message names each field that differs, with both values.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or state.get("version") != VERSION:
        raise ConfigError(f"not a loader state of this version (format {FORMAT!r}, version {VERSION}): {state!r:.200}")
    epoch, step = state.get("epoch"), state.get("step")
    for name, value in (("epoch", epoch), ("step", step)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"the loader state is damaged: {name} is {value!r}, expected a whole number of 0 or more")
    current = _short(plan_settings)
    saved = {name: state.get(name) for name in current}
    differing = [name for name in current if saved[name] != current[name]]
    if differing:
        parts = "; ".join(f"{name} was {saved[name]!r}, is {current[name]!r}" for name in differing)
        raise ConfigError(
            f"the state was saved with other data or settings, so its position means nothing here: {parts}. Restore "
            "them to resume exactly, or start at the next epoch with "
            f"set_epoch({int(epoch or 0) + 1}) instead of load_state_dict"
        )
    return int(epoch or 0), int(step or 0)


def _short(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _short_value(value) for name, value in settings.items()}


def _short_value(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True)
    return value if len(text) <= _LONGEST_TEXT else digest_bytes(text.encode())
