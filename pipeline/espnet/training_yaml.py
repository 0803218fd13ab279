"""ShardLoaders from the `training.yaml` of ESPnet3, and what goes wrong in one."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml

from ..dataset.shardset import ShardSet
from ..errors import ConfigError, ShardingError
from ..loader.shard_loader import ShardLoader
from ..loader.world import find_world
from ..planning.batch_types import BY_BINS, BY_SIZE

logger = logging.getLogger("uttershard")

_SHARD_KEYS = ("total_shards", "dist_world_size", "num_shards", "world_shard_size")
_LOADER_KEYS = (
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "timeout",
)
"""What a DataLoader and a ShardLoader both have."""
_FACTORIES = ("SequenceIterFactory", "CategoryIterFactory")
_BATCH_KEYS = {
    "batch_size": "batch_size",
    "batch_bins": "batch_bins",
    "sort_in_batch": "sort_in_batch",
    "sort_batch": "sort_batch",
    "drop_last": "drop_last",
    "min_batch_size": "min_batch_size",
    "max_batch_size": "max_batch_size",
    "fold_lengths": "fold_lengths",
    "padding": "padded",
    "upsampling_factor": "upsampling_factor",
    "dataset_scaling_factor": "scaling_factor",
}
"""Keys of ESPnet's `batches:`, and what they are called here."""


def loader_from_espnet(
    config: Mapping[str, Any] | str | PathLike[str],
    dataset: str | PathLike[str] | ShardSet,
    *,
    mode: str = "train",
    **settings: Any,
) -> ShardLoader:
    """Return the ShardLoader that does what ESPnet3's `training.yaml` asks of its data loader.

    Batches are those of ESPnet2's samplers for each logical shard, in an order of our own where it is to be shuffled.
    Lengths come from the sidecars: of `shape_files` only the dimensions are read.

    Args:
        config: The configuration: a mapping (an OmegaConf configuration is one), or the path of the file.
        dataset: Address of the packed dataset, or a ShardSet.
        mode: "train" or "valid".
        settings: More settings of ShardLoader, or others than the configuration has: `device`, `tokenizer`, `stats`
            (for lengths in tokens or frames of features), `category` (instead of a category2utt_file), …

    Raises:
        ConfigError: The configuration has a mistake, or asks for what a ShardLoader does not do; the message names it.
        ShardingError: total_shards, dist_world_size and the number of ranks do not fit together.

    Example:
        >>> loader = loader_from_espnet("conf/training.yaml", "shards/train", device="cuda")  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     uids, data = espnet_collate(batch)
    """
    tree = _read(config)
    sections = tree.get("dataloader")
    if not isinstance(sections, Mapping) or not isinstance(sections.get(mode), Mapping):
        raise ConfigError(f"the configuration has no `dataloader: {mode}:`, where ESPnet3 says how batches are made")
    _check_places(sections)
    _check_stats_files(tree)
    section = sections[mode]
    if "multiple_iterator" in section:
        raise ConfigError("`multiple_iterator:` is not supported by ESPnet3 either: give total_shards to the dataset")
    given = _sharding(tree.get("dataset"), mode, settings)
    if section.get("iter_factory") is None:
        given |= _from_dataloader(section)
    else:
        given |= _from_factory(section["iter_factory"], settings)
    if "seed" in tree:
        given.setdefault("seed", tree["seed"])
    merged = {**given, **settings}
    if not merged.get("shuffle", True) and merged.get("total_shards") is not None:
        merged.setdefault("rotate", True)
    return ShardLoader(dataset, **merged)


def _read(config: Mapping[str, Any] | str | PathLike[str]) -> dict[str, Any]:
    where = "the configuration"
    if isinstance(config, str | PathLike):
        where = fspath(config)
        try:
            config = yaml.safe_load(Path(where).read_text("utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(f"{where}: there is no such file; give the path of ESPnet3's training.yaml") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{where} can't be read as YAML: {error}") from error
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where} is no mapping but {config!r:.60}: give ESPnet3's training.yaml")
    plain: dict[str, Any] = _plain(config)
    return plain


def _plain(value: Any) -> Any:
    """Return dicts and lists of what may be OmegaConf's; reading its values resolves them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def _walk(tree: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, key, value) of everything in a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        below = f"{path}.{key}" if isinstance(tree, dict) else f"{path}[{key}]"
        yield below, str(key), value
        yield from _walk(value, below)


def _check_places(dataloader: Mapping[str, Any]) -> None:
    for path, key, value in _walk(dataloader, "dataloader"):
        if key in _SHARD_KEYS:
            raise ConfigError(
                f"`{path}: {value}` has no effect there: ESPnet3 takes total_shards and dist_world_size from the "
                "dataset. Move it to the arguments of the dataset, under `dataset:`"
            )
        if isinstance(value, str) and "${" in value and "collate" not in path:
            raise ConfigError(
                f"`{path}: {value}` is not resolved: give OmegaConf's configuration itself, or "
                "OmegaConf.to_container(config, resolve=True)"
            )


def _check_stats_files(tree: dict[str, Any]) -> None:
    for path, key, value in _walk(tree, ""):
        if key == "stats_file" and isinstance(value, str) and "${" not in value and not Path(value).exists():
            raise ConfigError(
                f"`{path.lstrip('.')}: {value}`: the statistics are missing. Run `uttershard stats`, which writes "
                "feats_stats.npz, or ESPnet's collect_stats stage first"
            )


def _sharding(dataset: Any, mode: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return total_shards as the dataset section has it; check what goes with it."""
    by_mode = isinstance(dataset, dict) and not dataset.keys().isdisjoint(("train", "valid"))
    part = dataset.get(mode) if by_mode else dataset
    found: dict[str, dict[Any, str]] = {"total_shards": {}, "dist_world_size": {}}
    for path, key, value in _walk(part, f"dataset.{mode}"):
        if key in found and value is not None:
            found[key].setdefault(value, path)
    for key, values in found.items():
        if len(values) > 1:
            places = ", ".join(f"`{path}: {value}`" for value, path in values.items())
            raise ShardingError(f"{places}: all datasets of one loader need the same {key}")
    if not found["total_shards"]:
        return {}
    total_shards, place = next(iter(found["total_shards"].items()))
    _, world_size = find_world(settings.get("rank"), settings.get("world_size"))
    stated = next(iter(found["dist_world_size"]), None)
    if stated is None:
        raise ShardingError(
            f"`{place}: {total_shards}` stands without dist_world_size, which ESPnet3 needs: set dist_world_size: "
            f"{world_size} beside it"
        )
    if stated != world_size:
        left = ", as it is by default" if stated == 1 else ""
        raise ShardingError(
            f"dist_world_size is {stated}{left}, but {world_size} ranks are running, so that ranks would read the "
            f"same shards: set dist_world_size: {world_size} beside `{place}`"
        )
    return {"total_shards": total_shards}


def _from_dataloader(section: dict[str, Any]) -> dict[str, Any]:
    """Translate the settings of a plain DataLoader."""
    if "batch_bins" in section:
        raise ConfigError(_IGNORED.format(setting=f"batch_bins: {section['batch_bins']}", type="no iter_factory"))
    given = _known(
        section, "dataloader", ("batch_size", "shuffle", *_LOADER_KEYS), ("iter_factory", "collate_fn", "drop_last")
    )
    if section.get("drop_last"):
        raise ConfigError(
            "`drop_last: true` of a plain DataLoader: a ShardLoader makes equal steps without dropping; leave it out, "
            "or give equal_steps='drop'"
        )
    given.setdefault("batch_size", 1)
    given.setdefault("shuffle", False)
    return given


_IGNORED = (
    "`{setting}` is a budget that ESPnet ignores with {type}, so that batches would be of another size than you think: "
    "delete it, or choose a type that uses it"
)


def _from_factory(factory: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Translate an iter_factory."""
    if "_target_" not in factory:
        raise ConfigError(f"`iter_factory:` has no `_target_:`, which says what it is: name {' or '.join(_FACTORIES)}")
    target = str(factory["_target_"]).rpartition(".")[2]
    if target not in _FACTORIES:
        raise ConfigError(
            f"`iter_factory: _target_: {factory['_target_']}` has no counterpart: a ShardLoader does what "
            f"{' and '.join(_FACTORIES)} do"
        )
    if factory.get("num_iters_per_epoch") is not None:
        raise ConfigError(
            f"`num_iters_per_epoch: {factory['num_iters_per_epoch']}` has no counterpart: give the dataset a larger "
            "total_shards, which makes epochs shorter"
        )
    given = _known(
        factory,
        "iter_factory",
        ("shuffle", "seed", *_LOADER_KEYS),
        ("_target_", "collate_fn", "batches", "num_iters_per_epoch", "batch_type", "sampler_args"),
    )
    given.setdefault("shuffle", False)
    batches = factory.get("batches")
    if not isinstance(batches, dict):
        raise ConfigError("`iter_factory:` has no `batches:`, where ESPnet says how they are made")
    return given | _from_batches(batches, settings)


def _from_batches(batches: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of build_batch_sampler, or of build_category_batch_sampler."""
    batch_type = batches.get("type")
    if batch_type == "catpow_balance_dataset":
        raise ConfigError("`type: catpow_balance_dataset` has no counterpart: use a Mix of datasets with a temperature")
    if batch_type not in (*BY_SIZE, *BY_BINS):
        raise ConfigError(
            f"`type: {batch_type}` is no batch type of ESPnet: choose one of {', '.join(BY_SIZE + BY_BINS)}"
        )
    if batches.get("num_batches") is not None:
        raise ConfigError(f"`num_batches: {batches['num_batches']}` has no counterpart: use a larger total_shards")
    files = ("shape_files", "utt2category_file", "category2utt_file")
    given = _known(
        batches, "batches", tuple(_BATCH_KEYS), ("_target_", "type", *files, "epoch", "num_batches", "distributed")
    )
    if batch_type in BY_SIZE and "batch_bins" in given:
        raise ConfigError(_IGNORED.format(setting=f"batch_bins: {given['batch_bins']}", type=f"`type: {batch_type}`"))
    if batch_type in BY_BINS and "batch_size" in given:
        # build_batch_sampler can't be called without it.
        logger.warning("`batch_size: %s` has no effect with `type: %s`", given.pop("batch_size"), batch_type)
    given = {_BATCH_KEYS[key]: value for key, value in given.items()}
    for name in files[1:]:
        if batches.get(name) is not None and "category" not in settings:
            raise ConfigError(
                f"`{name}: {batches[name]}`: categories come from a column of the sidecars. Pack with --column NAME, "
                "and give category='NAME' to loader_from_espnet"
            )
    if batch_type not in ("unsorted", "catbel") and "length_columns" not in settings:
        given |= _lengths(batch_type, batches.get("shape_files") or [], settings)
    return {"batch_type": batch_type, **given}


def _lengths(batch_type: str, shape_files: list[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Name the columns that hold what shape files do."""
    if not shape_files:
        raise ConfigError(
            f"`type: {batch_type}` has no shape_files: name some, or give length_columns=('num_samples',)"
        )
    used = shape_files if batch_type in ("folded", "length", "numel") else shape_files[:1]
    columns, dims = zip(*(_length(path, settings) for path in used), strict=True)
    return {"length_columns": columns, **({"length_dims": dims} if batch_type == "numel" else {})}


def _length(shape_file: str, settings: Mapping[str, Any]) -> tuple[str, int]:
    path = Path(shape_file)
    name, _, unit = path.name.partition(".")
    column = {"speech_shape": "num_samples", "feats_shape": "feature_frames", "text_shape": "tokens"}.get(name)
    if column == "tokens" and unit == "char":
        column = "text_chars"
    hint = "give length_columns= (and length_dims= for numel) to loader_from_espnet"
    if column is None:
        raise ConfigError(f"shape file {shape_file}: of what it has the lengths does not show from its name; {hint}")
    if not path.is_file():
        raise ConfigError(
            f"shape file {shape_file}: the statistics are missing. Run ESPnet's collect_stats stage or `uttershard "
            f"stats` first, or {hint}"
        )
    if column in ("tokens", "feature_frames") and "stats" not in settings:
        raise ConfigError(
            f"shape file {shape_file}: the dataset's own statistics are missing, which have {column} of each "
            f"utterance. Run `uttershard stats` and give stats=, or {hint}"
        )
    with path.open(encoding="utf-8") as lines:
        fields = lines.readline().split()
    try:
        shape = [int(number) for number in fields[1].split(",")]
    except (IndexError, ValueError) as error:
        raise ConfigError(
            f"shape file {shape_file}: its first line is no id and shape: {' '.join(fields)!r}"
        ) from error
    return column, math.prod(shape[1:])


def _known(section: dict[str, Any], name: str, taken: Sequence[str], ignored: Sequence[str]) -> dict[str, Any]:
    """Return the settings that are taken as they are; refuse what has no counterpart."""
    for key in section:
        if key not in (*taken, *ignored):
            raise ConfigError(f"`{name}: {key}: {section[key]}` has no counterpart in a ShardLoader: leave it out")
    return {key: section[key] for key in taken if section.get(key) is not None}
