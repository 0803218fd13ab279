"""`uttershard info`: what a dataset holds, from its manifest and sidecars; no audio is read."""

from typing import Annotated, Any

import typer
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.remote.retry import Limits

from .output import Json, as_bytes, as_count, as_duration, print_json, print_pairs, print_table
from .storage import READ_DEADLINE, READ_TIMEOUT, ReadDeadline, ReadTimeout, StorageOption, parse_storage_options


def info(
    dataset: Annotated[str, typer.Argument(help="Address of the dataset: the folder that holds dataset.json.")],
    shards: Annotated[bool, typer.Option("--shards", help="List every shard.")] = False,
    storage_option: StorageOption = None,
    read_timeout: ReadTimeout = READ_TIMEOUT,
    read_deadline: ReadDeadline = READ_DEADLINE,
    json: Json = False,
) -> None:
    """Show what a dataset holds: hours, utterances, lengths, rates, codecs, columns, digest.

    Reads the manifest and the sidecars, no audio.
    """
    opened = ShardSet.open(dataset, parse_storage_options(storage_option), Limits(read_timeout, read_deadline))
    facts = describe(opened)
    if json:
        print_json(facts)
        return
    audio = ", ".join(
        f"{entry['utterances']:,} {entry['codec']} {entry['sample_rate']} Hz {entry['channels']} ch"
        for entry in facts["audio"]
    )
    print_pairs(
        opened.address,
        [
            ("audio", f"{as_duration(opened.manifest.seconds)} in {as_count(facts['utterances'], 'utterance')}"),
            ("lengths", f"{facts['shortest_seconds']:.2f} s to {facts['longest_seconds']:.2f} s"),
            ("kinds", audio),
            ("shards", f"{len(facts['shards']):,}, {as_bytes(facts['bytes'])}"),
            ("columns", ", ".join(f"{name} ({kind})" for name, kind in facts["columns"].items()) or "-"),
            ("transcripts", f"{facts['with_text']:,} of {facts['utterances']:,}"),
            ("digest", facts["digest"]),
            ("made by", facts["created_by"]),
        ],
    )
    if shards:
        print_table(
            "Shards",
            ("tar", "utterances", "audio", "size", "shortest", "longest"),
            [
                (
                    shard["tar"],
                    f"{shard['utterances']:,}",
                    as_duration(shard["seconds"]),
                    as_bytes(shard["tar_bytes"]),
                    f"{shard['shortest_seconds']:.2f} s",
                    f"{shard['longest_seconds']:.2f} s",
                )
                for shard in facts["shards"]
            ],
        )


def describe(dataset: ShardSet) -> dict[str, Any]:
    """Return what is known of a dataset as JSON values."""
    from dataclasses import asdict

    import pyarrow.compute as pc

    manifest = dataset.manifest
    table = dataset.index(["codec", "sample_rate", "channels", "text_chars"])
    table = table.set_column(0, "codec", table["codec"].cast("string"))
    kinds = (
        table.group_by(["codec", "sample_rate", "channels"])
        .aggregate([([], "count_all")])
        .sort_by([("count_all", "descending"), ("codec", "ascending")])
    )
    return {
        "dataset": dataset.address,
        "digest": manifest.digest,
        "created_by": manifest.created_by,
        "utterances": manifest.utterances,
        "hours": manifest.seconds / 3600,
        "seconds": manifest.seconds,
        "samples": manifest.samples,
        "bytes": manifest.tar_bytes,
        "shortest_seconds": min((shard.shortest_seconds for shard in manifest.shards if shard.utterances), default=0.0),
        "longest_seconds": max((shard.longest_seconds for shard in manifest.shards), default=0.0),
        "with_text": pc.sum(pc.greater(table["text_chars"], 0)).as_py() or 0,
        "audio": [
            {
                "codec": row["codec"],
                "sample_rate": row["sample_rate"],
                "channels": row["channels"],
                "utterances": row["count_all"],
            }
            for row in kinds.to_pylist()
        ],
        "columns": manifest.columns,
        "fingerprint": manifest.fingerprint,
        "shards": [asdict(shard) for shard in manifest.shards],
    }
