"""Options of commands that use a store: what its file system needs to know, and how long it may take."""

import json
from typing import Annotated, Any

import typer
from uttershard.pipeline.errors import ConfigError
from uttershard.pipeline.remote.faults import is_secret
from uttershard.pipeline.remote.retry import Limits

_WRITING = (
    "NAME=VALUE; the value is text, true, false, or JSON in braces or brackets (NAME:=VALUE takes any JSON, numbers "
    "too); may be repeated. Credentials are better left to the environment"
)

StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Option of the file system of a dataset in a store, e.g. --storage-option endpoint_url=http://store:9000 "
        f"or anon=true: {_WRITING}."
    ),
]
SourceStorageOption = Annotated[
    list[str] | None,
    typer.Option(
        help="The same for a corpus in a store: --storage-option is the target's only. Without it, the corpus is read "
        "with what the environment says."
    ),
]
ReadTimeout = Annotated[
    float, typer.Option(help="Seconds without a byte from the store after which a read is made again.")
]
ReadDeadline = Annotated[float, typer.Option(help="Seconds for a read from the store with all its attempts.")]
WriteTimeout = Annotated[float, typer.Option(help="Seconds after which a request to the target is made again.")]
WriteDeadline = Annotated[float, typer.Option(help="Seconds for a request to the target with all its attempts.")]

READ_TIMEOUT, READ_DEADLINE = Limits.read_timeout, Limits.read_deadline


def parse_storage_options(pairs: list[str] | None, option: str = "--storage-option") -> dict[str, Any] | None:
    """Return storage_options as `option` gives them.

    Text stays text: a key may be made of digits, and no guess is made about credentials at all.

    Example:
        >>> parse_storage_options(["anon=true", "key=0123", "max_concurrency:=4"])
        {'anon': True, 'key': '0123', 'max_concurrency': 4}
        >>> parse_storage_options(['client_kwargs={"region_name": "eu-west-1"}'])
        {'client_kwargs': {'region_name': 'eu-west-1'}}
    """
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        as_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            # The value may be a secret: it is not repeated.
            raise ConfigError(f"{option}: write NAME=VALUE")
        if not as_json and (is_secret(name) or not (value in ("true", "false") or value.startswith(("{", "[")))):
            options[name] = value
            continue
        try:
            options[name] = json.loads(value)
        except ValueError:
            raise ConfigError(f"{option} {name}: the value is not JSON, as one in braces or brackets must be") from None
    return options or None
