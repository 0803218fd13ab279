"""The clients of a process: one file system for all that a place is asked, and a bounded number of places."""

import gc
import weakref
import zipfile
from pathlib import Path
from typing import Any

import pytest
from uttershard.pipeline.remote import clients, obstore_s3
from uttershard.pipeline.remote.clients import open_client
from uttershard.pipeline.remote.retry import Limits
from uttershard.pipeline.remote.store import Store


def options_of(number: int) -> dict[str, Any]:
    """Options as of a job whose credentials are given anew every hour."""
    return {"key": "key", "secret": f"secret {number}", "endpoint_url": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without any; two have room."""
    monkeypatch.setattr(clients, "_places", type(clients._places)())
    monkeypatch.setattr(clients, "_MOST_PLACES", 2)


def test_a_place_has_one_file_system_and_a_client_of_each_kind() -> None:
    first, path = open_client("s3://speech/train/shard-000000.tar", options_of(0))
    again, _ = open_client("s3://speech/other", options_of(0))
    bulk, _ = open_client("s3://speech/train", options_of(0), bulk=True)
    assert path == "speech/train/shard-000000.tar"
    assert first is again
    assert bulk.filesystem is first.filesystem
    assert isinstance(bulk, obstore_s3.ObstoreClient) == obstore_s3.INSTALLED
    assert open_client("s3://archive/train", options_of(0))[0] is not first


def test_what_was_used_longest_ago_is_let_go_of() -> None:
    opened = [weakref.ref(open_client("s3://speech/train", options_of(number))[0].filesystem) for number in range(2)]
    open_client("s3://speech/train", options_of(0))
    for number in range(2, 5):
        opened.append(weakref.ref(open_client("s3://speech/train", options_of(number))[0].filesystem))
        open_client("s3://speech/train", options_of(0))
    gc.collect()
    assert [filesystem() is not None for filesystem in opened] == [True, False, False, False, True]


def test_obstore_does_not_keep_what_it_asks_for_credentials() -> None:
    client, _ = open_client("s3://speech/train", options_of(0), bulk=True)
    assert isinstance(client, obstore_s3.ObstoreClient)
    client.store("speech", Limits())
    kept = [weakref.ref(client), weakref.ref(client.filesystem)]
    clients._places.clear()
    del client
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_archives_are_not_taken_for_one_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("a/words.txt", name)
    store = Store()
    assert [store.read(f"zip://a/words.txt::file://{tmp_path}/{name}.zip") for name in ("one", "two")] == [
        b"one",
        b"two",
    ]
