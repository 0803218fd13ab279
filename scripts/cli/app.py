"""The commands and what they are called."""

from typing import Annotated

import typer

from .cache import cache
from .export import export
from .index import index
from .info import info
from .merge import merge
from .pack import pack
from .plan import plan
from .stats import stats
from .subset import subset
from .verify import verify

app = typer.Typer(
    name="uttershard",
    help="Speech corpora into tar shards with a length sidecar; every epoch planned before a byte of audio is read.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

for _command in (pack, index, info, verify, plan, stats, export, merge, subset):
    app.command()(_command)
app.add_typer(cache, name="cache")


@app.callback(invoke_without_command=True)
def _about(
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"uttershard {installed('uttershard')}")
        raise typer.Exit
