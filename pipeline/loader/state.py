"""The state of a loader: what the trainer has consumed, as JSON under 1 KB; equal on all ranks.

{"format": "uttershard.loader", "version": 1,
 "dataset": <dataset digest>, "seed": 0, "world_size": 8, "total_shards": 8,
 "filters": <digest>, "batching": <digest>, …        what the plan depends on
 "epoch": 3, "step": 1207,                           the next batch is step 1207 of epoch 3
 "rotation": [3, 24],                                only after a change of world size: see Rotation
 "stages": [[6, 8, 400]],                            only in an epoch cut by one: see Stage
 "parts": ["1f0c22aa", …], "finished": true}         only of a mix: its datasets; after the last step of an epoch

A setting that is not set is left out, and compared as None.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dataset.digest import digest_bytes
from ..errors import ConfigError
from ..planning.elastic import Course, Stage
from ..planning.rotation import Rotation

logger = logging.getLogger("uttershard")

FORMAT = "uttershard.loader"
VERSION = 1

_SETTINGS_BYTES = 600
"""Where the settings are larger as JSON, the longest (a long `where`) are kept as digests: a state stays under 1 KB."""

_PLACE = ("format", "version", "epoch", "step", "rotation", "stages", "finished")
"""Fields of a state that are no settings."""

WORLD = ("world_size", "total_shards")
"""What may differ from a state to the loader that it is loaded into: the rest of the epoch is then dealt anew."""


_PARTS = "parts"
"""Ids of the datasets of a mix, kept so that one may be added."""

MOST_IDS = 12
"""Of a mix of more datasets the state has their number and one digest, and datasets are added at its end."""


@dataclass(frozen=True)
class Place:
    """Where a loader goes on: the next batch is `step` of `epoch`, as `course` has it."""

    epoch: int
    step: int
    course: Course


def encode_state(plan_settings: Mapping[str, Any], place: Place, *, finished: bool = False) -> dict[str, Any]:
    """Return the state of a loader.

    Args:
        plan_settings: All that the plan depends on, besides the place: JSON values by name.
        place: The next batch.
        finished: Whether that is after the last batch of the epoch.
    """
    state = {"format": FORMAT, "version": VERSION, **_short(plan_settings), "epoch": place.epoch, "step": place.step}
    if finished and _PARTS in plan_settings:
        state["finished"] = True
    course = place.course.at(place.epoch, plan_settings["total_shards"])
    if course.rotation != Rotation():
        state["rotation"] = [course.rotation.epoch, course.rotation.shards]
    if course.stages:
        state["stages"] = [[stage.world_size, stage.total_shards, stage.steps] for stage in course.stages]
    return state


def decode_state(state: Mapping[str, Any], plan_settings: Mapping[str, Any], *, force: bool = False) -> Place:
    """Return where a state says to go on, if it belongs to this dataset and these settings.

    Args:
        state: From `encode_state`, with any world size.
        plan_settings: All that the plan depends on now.
        force: Go on at the start of the next epoch, and log a warning, if it does not belong.

    Raises:
        ConfigError: It does not belong; the message names each field that differs, with both values.
        ShardingError: total_shards was changed, and not together with the world size.
    """
    saved = _decode_place(state)
    current = {name: _short_ids(value) if name == _PARTS else value for name, value in plan_settings.items()}
    names = [name for name in {**current, **state} if name not in (*WORLD, *_PLACE)]
    differing = [name for name in names if not _same(state.get(name), current.get(name))]
    try:
        added = _added_datasets(state, plan_settings) if set(differing) <= {"dataset", "mix", _PARTS} else []
        if added:
            return _in_this_world(_between_epochs(saved, state, added), state, plan_settings)
        parts = "; ".join(f"{name} was {state.get(name)!r}, is {current.get(name)!r}" for name in differing)
        if parts:
            raise ConfigError(
                f"the state was saved with other data or settings, so its position means nothing here: {parts}. "
                "Restore them to resume exactly, or start at the next epoch with load_state_dict(state, force=True)"
            )
        return _in_this_world(saved, state, plan_settings)
    except ConfigError as error:
        if not force:
            raise
        logger.warning("starting at epoch %d, since force=True and %s", saved.epoch + 1, error)
        return Place(saved.epoch + 1, 0, Course())


def _added_datasets(state: Mapping[str, Any], plan_settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the datasets that a mix has more than when it was saved; none if it lacks one."""
    before, now = state.get(_PARTS), plan_settings.get(_PARTS)
    if not isinstance(before, list) or not isinstance(now, list):
        return []
    kept = now[: before[0]] if before and isinstance(before[0], int) else before
    if not kept or before != _short_ids(kept) or not all(part in now for part in kept):
        return []
    names = [name for name, *_ in plan_settings["mix"]["factors"]]
    return [name for name, part in zip(names, now, strict=True) if part not in kept]


def _between_epochs(saved: Place, state: Mapping[str, Any], added: list[str]) -> Place:
    if state.get("finished"):
        return Place(
            saved.epoch + 1, 0, saved.course.at(saved.epoch + 1, _whole(state.get("total_shards"), "total_shards"))
        )
    if saved.step or saved.course.stages:
        raise ConfigError(
            f"{', '.join(map(repr, added))} is new in the mix, and the state was saved in the middle of epoch "
            f"{saved.epoch}: add datasets between epochs, or start at the next epoch with "
            "load_state_dict(state, force=True)"
        )
    return saved


def _in_this_world(saved: Place, state: Mapping[str, Any], current: Mapping[str, Any]) -> Place:
    world_size, total_shards = (_whole(state.get(name), name, least=1) for name in WORLD)
    if (world_size, total_shards) == (current["world_size"], current["total_shards"]):
        return saved
    if total_shards % world_size:
        raise ConfigError(
            f"the loader state is damaged: total_shards {total_shards} is no multiple of world_size {world_size}"
        )
    left = Stage(world_size, total_shards, saved.step)
    course = saved.course.change_world(saved.epoch, left, current["world_size"], current["total_shards"])
    return Place(saved.epoch, 0, course)


def _decode_place(state: Mapping[str, Any]) -> Place:
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or state.get("version") != VERSION:
        raise ConfigError(f"not a loader state of this version (format {FORMAT!r}, version {VERSION}): {state!r:.200}")
    epoch, step = _whole(state.get("epoch"), "epoch"), _whole(state.get("step"), "step")
    rotation = Rotation(*_numbers(state.get("rotation", [0, 0]), 2, "rotation"))
    stages = tuple(Stage(*_numbers(stage, 3, "stages")) for stage in _listed(state.get("stages", ()), "stages"))
    return Place(epoch, step, Course(rotation, epoch if stages else 0, stages))


def _numbers(value: Any, count: int, name: str) -> list[int]:
    if len(_listed(value, name)) != count:
        raise ConfigError(f"the loader state is damaged: {name} is {value!r}, expected {count} whole numbers")
    return [_whole(number, name) for number in value]


def _listed(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"the loader state is damaged: {name} is {value!r}, expected a list")
    return value


def _whole(value: Any, name: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"the loader state is damaged: {name} is {value!r}, expected a whole number of {least} or more"
        )
    return value


def _short(settings: Mapping[str, Any]) -> dict[str, Any]:
    short = {name: _short_ids(value) if name == _PARTS else value for name, value in settings.items()}
    while len(json.dumps(short)) > _SETTINGS_BYTES:
        longest = max((name for name in short if name != _PARTS), key=lambda name: len(json.dumps(short[name])))
        digest = _digest(short[longest])
        if len(json.dumps(short[longest])) <= len(json.dumps(digest)):
            break
        short[longest] = digest
    return short


def _short_ids(ids: Sequence[str]) -> list[Any]:
    return list(ids) if len(ids) <= MOST_IDS else [len(ids), _digest(ids)]


def _same(saved: Any, current: Any) -> bool:
    return bool(saved == current) or saved == _digest(current)


def _digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True)
    return f"digest {digest_bytes(text.encode())[-16:]}"
