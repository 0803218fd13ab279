"""`--storage-option`: what the file system of a remote dataset needs to know."""

import json
from typing import Annotated, Any

import typer
from uttershard.pipeline.errors import ConfigError

StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Option of a remote dataset's file system, e.g. --storage-option endpoint_url=http://store:9000 or "
        "anon=true; may be repeated. Credentials are better left to the environment."
    ),
]


def parse_storage_options(pairs: list[str] | None) -> dict[str, Any] | None:
    """Return storage_options; a value that is JSON is taken as such, any other as text.

    Example:
        >>> parse_storage_options(["anon=true", "endpoint_url=http://store:9000"])
        {'anon': True, 'endpoint_url': 'http://store:9000'}
    """
    options = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # The value may be a secret: it is not repeated.
            raise ConfigError("--storage-option: write name=value")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options or None
