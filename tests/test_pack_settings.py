"""Settings of a pack job are refused by name, with what would do."""

from typing import Any

import pytest
from uttershard.pipeline.errors import ConfigError
from uttershard.writers import PackSettings, pack
from uttershard.writers.error_limits import parse_max_errors
from uttershard.writers.settings import parse_size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codec": "aac"}, "codec is 'aac'; it can be keep, flac, wav, opus"),
        ({"sample_rate": 0}, "sample_rate is 0; it must be 1 or more"),
        ({"sample_rate": 16e3}, "sample_rate is 16000.0; it must be an integer"),
        ({"codec": "opus", "sample_rate": 44_100}, "Opus has only 8000, 12000, 16000, 24000, 48000 Hz"),
        ({"channels": 0}, "channels is 0"),
        ({"shards": 0}, "shards is 0"),
        ({"shard_bytes": 0}, "shard_bytes is 0"),
        ({"multiple": 0}, "multiple is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, r"below 2\*\*64"),
        ({"workers": 0}, "workers is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"on_error": "stop"}, "on_error is 'stop'; it can be skip or raise"),
        ({"max_errors": 1.0}, "a share must be 0 or more and below 1"),
        ({"max_errors": -1}, "max_errors is -1"),
        ({"max_errors": True}, "max_errors is True"),
        ({"columns": ("a", "a")}, "names 'a' twice"),
        ({"columns": ("offset",)}, "'offset' has the name of a column of the format"),
    ],
)
def test_bad_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackSettings(**settings)


def test_unknown_setting() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'shard'; it has: codec, .*shards"):
        pack("source", "target", shard=3)


@pytest.mark.parametrize("text", ["", "12 parsecs", "-5", "1e3"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_max_errors_as_text() -> None:
    assert parse_max_errors("0") == 0
    assert isinstance(parse_max_errors("0"), int)
    assert parse_max_errors("1e-3") == 0.001
    with pytest.raises(ConfigError, match="write a count"):
        parse_max_errors("few")
