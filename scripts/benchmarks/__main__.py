"""The command: `scripts/bench`, or `python -m uttershard.scripts.benchmarks`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from uttershard.pipeline.errors import UttershardError


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part: flac, wav (reading), planning, padding, storage, packing; all if left out."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often all is measured; at least 3 to be quoted.")] = 3,
    hours: Annotated[float, typer.Option(help="Audio in the corpus, made once and kept (160 MB an hour).")] = 6.0,
    seconds: Annotated[float, typer.Option(help="How long the clock runs on each stream.")] = 3.0,
    warm_up: Annotated[float, typer.Option(help="Seconds that a stream runs before the clock starts.")] = 2.0,
    utterances: Annotated[
        list[int] | None, typer.Option(help="Corpus size to plan for; may be repeated. 10 k, 1 M and 10 M if left out.")
    ] = None,
    ranks: Annotated[
        list[int] | None,
        typer.Option(help="Number of ranks to plan for; may be repeated. 1, 8, 64 and 1,024 if left out."),
    ] = None,
    packing_hours: Annotated[float, typer.Option(help="Audio that is packed (115 MB an hour, three times).")] = 24.0,
    data: Annotated[Path, typer.Option(help="Where the corpus is made and kept.")] = Path("bench-data"),
    speech: Annotated[Path, typer.Option(help="Recordings (FLAC or WAV, 16 kHz mono) that it is made of.")] = Path(
        "demo/audio"
    ),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for benchmarks.md and benchmarks.json. docs for a whole run, --data for a part."),
    ] = None,
) -> None:
    """Measure reading, planning, storage and packing beside the machine's limits and others' tools.

    Every measurement runs in a process of its own, in interleaved rounds, on a corpus that is made on the first run.
    A whole run takes about twenty minutes; leave the machine alone meanwhile.

    \b
    scripts/bench                             all of it, into docs/benchmarks.md and docs/benchmarks.json
    scripts/bench --only flac --rounds 5      FLAC alone, into bench-data/
    scripts/bench --only planning --utterances 100000000 --ranks 4096
    """
    from .report import markdown
    from .suite import Suite

    standard = Suite()
    suite = Suite(
        parts=tuple(only) if only else standard.parts,
        data=data,
        speech=speech,
        hours=hours,
        rounds=rounds,
        seconds=seconds,
        warm_up_seconds=warm_up,
        utterances=tuple(utterances) if utterances else standard.utterances,
        ranks=tuple(ranks) if ranks else standard.ranks,
        packing_hours=packing_hours,
    )
    results = suite.run()
    folder = out or (data if only else Path("docs"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    document = markdown(results)
    (folder / "benchmarks.md").write_text(document, "utf-8")
    print(document)
    print(f"written to {folder}/benchmarks.md and {folder}/benchmarks.json", file=sys.stderr)


def main() -> None:
    """Run the command line; exit status 0 only when all was measured."""
    app = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command()(bench)
    try:
        app(prog_name="scripts/bench")
    except UttershardError as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("scripts/bench: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
