"""Where credentials come from, that they are renewed in the middle of a job, and that nothing ever tells them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import s3_job
from batch_system import install_batch_system
from corpora import files_of, jsonl_corpus
from credential_server import running_credential_server
from fault_proxy import Fault, FaultProxy
from packed import BINS, run
from s3_cases import RemoteDataset, place_of, stored
from s3_server import (
    ACCESS,
    ARCHIVE,
    ARCHIVIST,
    ARCHIVIST_SECRET,
    PACKER,
    PACKER_SECRET,
    PUBLIC,
    READER,
    READER_SECRET,
    SECRET,
    S3Server,
)
from uttershard.pipeline import ShardLoader
from uttershard.pipeline.errors import DataError, StorageError
from uttershard.scripts.cli.storage import parse_storage_options
from uttershard.writers import pack, verify
from uttershard.writers.cluster import ClusterSettings

HERE = ClusterSettings(n_workers=2, options={"processes": False})
LIMIT_SECONDS = 300


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jsonl_corpus(tmp_path_factory.mktemp("corpus"), 8)


@pytest.fixture(scope="module")
def local(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("local") / "out"
    pack(corpus, target, shards=2, cluster=HERE)
    return target


@pytest.fixture
def archived(s3: S3Server, corpus: Path) -> str:
    """The corpus where only the archivist reads."""
    return f"{s3.upload(corpus.parent, 'corpus', ARCHIVE)}/{corpus.name}"


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """A place of the test's own."""
    return place_of(request, "credentials")


def options_of(s3: S3Server, key: str, secret: str) -> dict[str, Any]:
    return {"key": key, "secret": secret, "endpoint_url": s3.endpoint}


def environment(home: Path, **variables: str) -> dict[str, str]:
    """The environment of a process that has no other credentials than these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true", **variables}


def tars_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".tar")}


def uttershard(env: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("uttershard")), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)


# What the options mean


def test_text_stays_text() -> None:
    given = [
        *("key=0123", "secret=1e9", "token=true", "password={x}", "profile=7", "anon=true", "endpoint_url=http://h:9"),
        *('client_kwargs={"region_name": "x", "verify": false}', "max_concurrency:=4", "note=a=b", "empty="),
    ]
    assert parse_storage_options(given) == {
        "key": "0123",
        "secret": "1e9",
        "token": "true",
        "password": "{x}",
        "profile": "7",
        "anon": True,
        "endpoint_url": "http://h:9",
        "client_kwargs": {"region_name": "x", "verify": False},
        "max_concurrency": 4,
        "note": "a=b",
        "empty": "",
    }
    assert parse_storage_options(None) is None


@pytest.mark.parametrize("pair", ["hunter2", "=hunter2", ":=hunter2", "client_kwargs={'hunter2': 1}", "n:=hunter2"])
def test_what_is_written_wrongly_is_not_repeated(pair: str) -> None:
    with pytest.raises(Exception, match="--source-storage-option") as caught:
        parse_storage_options([pair], "--source-storage-option")
    assert "hunter2" not in str(caught.value)


# Two identities


def test_corpus_and_target_have_their_own(s3: S3Server, archived: str, local: Path, address: str) -> None:
    packer, archivist = options_of(s3, PACKER, PACKER_SECRET), options_of(s3, ARCHIVIST, ARCHIVIST_SECRET)
    with pytest.raises((DataError, StorageError), match=r"[Dd]enied|Forbidden"):
        pack(archived, address, shards=2, cluster=HERE, storage_options=packer, source_storage_options=packer)
    with pytest.raises(StorageError, match="access denied"):
        pack(archived, address, shards=2, cluster=HERE, storage_options=archivist, source_storage_options=archivist)
    pack(archived, address, shards=2, cluster=HERE, storage_options=packer, source_storage_options=archivist)
    assert tars_of(stored(s3, address)) == tars_of(files_of(local))


def test_the_command_with_two_identities(s3: S3Server, archived: str, address: str, tmp_path: Path) -> None:
    def options(flag: str, key: str, secret: str) -> list[str]:
        pairs = options_of(s3, key, secret)
        return [part for name, value in pairs.items() for part in (flag, f"{name}={value}")]

    packer = options("--storage-option", PACKER, PACKER_SECRET)
    archivist = options("--source-storage-option", ARCHIVIST, ARCHIVIST_SECRET)
    env = environment(tmp_path)
    packed = uttershard(env, "pack", archived, address, "--shards", "2", "--workers", "1", *packer, *archivist)
    assert packed.returncode == 0, packed.stderr
    assert "8 utterances" in packed.stdout
    assert verify(address, storage_options=options_of(s3, PACKER, PACKER_SECRET), full=True).ok


# Where they come from


@pytest.fixture(params=["environment", "profile", "process", "container", "instance"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The environment of a process in each of the ways to have credentials."""
    if request.param in ("container", "instance"):
        with running_credential_server(PACKER, PACKER_SECRET) as server:
            given = server.as_container if request.param == "container" else server.as_instance
            yield environment(tmp_path, **given, AWS_EC2_METADATA_DISABLED="false")
            assert server.handed_out
        return
    if request.param == "environment":
        yield environment(tmp_path, AWS_ACCESS_KEY_ID=PACKER, AWS_SECRET_ACCESS_KEY=PACKER_SECRET)
        return
    folder = tmp_path / ".aws"
    folder.mkdir()
    if request.param == "profile":
        lines = f"[speech]\naws_access_key_id = {PACKER}\naws_secret_access_key = {PACKER_SECRET}\n"
        (folder / "credentials").write_text(lines)
    else:
        found = {"Version": 1, "AccessKeyId": PACKER, "SecretAccessKey": PACKER_SECRET}
        (tmp_path / "found.json").write_text(json.dumps(found))
        process = f"cat {shlex.quote(str(tmp_path / 'found.json'))}"
        (folder / "config").write_text(f"[profile speech]\ncredential_process = {process}\n")
    yield environment(tmp_path, AWS_PROFILE="speech")


_PACK_AND_STREAM = """
import sys
import traceback
import s3_job
from batch_system import install_batch_system
from uttershard.pipeline import ShardLoader
from uttershard.writers import pack
from uttershard.writers.cluster import ClusterSettings
source, target = sys.argv[1:]
pack(source, target, shards=2, cluster=ClusterSettings(n_workers=1, options={"processes": False}))
print(s3_job.digest(ShardLoader(target, rank=0, world_size=1, batch_bins=int(sys.stdin.read())), 0))
"""


def test_the_chain(s3: S3Server, corpus: Path, local: Path, address: str, way: dict[str, str]) -> None:
    env = {**way, "AWS_ENDPOINT_URL": s3.endpoint, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", _PACK_AND_STREAM, str(corpus), address]
    ran = subprocess.run(
        command, env=env, input=str(BINS), capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    assert ran.returncode == 0, ran.stderr
    here = ShardLoader(str(local), rank=0, world_size=1, batch_bins=BINS)
    assert ran.stdout.strip() == s3_job.digest(here, 0)
    assert PACKER_SECRET not in ran.stderr


def test_no_credentials_at_all(s3: S3Server, remote: RemoteDataset, tmp_path: Path) -> None:
    env = environment(tmp_path, AWS_ENDPOINT_URL=s3.endpoint)
    told = uttershard(env, "info", remote.address)
    assert told.returncode == 1
    assert "access denied" in told.stderr and "AWS_ACCESS_KEY_ID" in told.stderr
    told = uttershard({**env, "AWS_PROFILE": "nowhere"}, "info", remote.address)
    assert told.returncode == 1 and "nowhere" in told.stderr and "Traceback" not in told.stderr


def test_anonymous(s3: S3Server, remote: RemoteDataset) -> None:
    address = s3.upload(remote.packed.address, "train", PUBLIC)
    options = {"anon": True, "endpoint_url": s3.endpoint}
    loader = ShardLoader(address, storage_options=options, rank=0, world_size=1, batch_bins=BINS)
    assert list(run(loader, 0)) == list(run(remote.packed.loader(), 0))
    with pytest.raises(StorageError, match="The request was anonymous"):
        ShardLoader(remote.address, storage_options=options, rank=0, world_size=1, batch_bins=BINS)


# Temporary credentials


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_temporary_credentials_are_renewed_while_streaming(
    remote: RemoteDataset, proxy: FaultProxy, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    options: dict[str, Any] = {"endpoint_url": proxy.endpoint}
    if client == "s3fs":
        options["config_kwargs"] = {"tcp_keepalive": True}  # which obstore has not, so that it is not used
    with running_credential_server(ACCESS, SECRET) as server:
        for name, value in server.as_container.items():
            monkeypatch.setenv(name, value)
        server.minutes = 1.0  # botocore renews what has less than ten left

        def expire(path: str) -> None:
            if ".tar" in path:
                server.identity = READER, READER_SECRET

        proxy.on_request = expire
        loader = ShardLoader(remote.address, storage_options=options, rank=0, world_size=1, batch_bins=BINS)
        batches = run(loader, 0)
        first = next(batches)
        proxy.expired = {ACCESS}
        assert [first, *batches] == list(run(remote.packed.loader(), 0))
        assert list(run(loader, 1)) == list(run(remote.packed.loader(), 1))
    assert {ACCESS, READER} == set(proxy.keys)
    assert proxy.keys[-1] == READER  # and all that came with the expired ones was refused, yet nothing is missing


def test_temporary_credentials_are_renewed_while_packing(
    proxy: FaultProxy, corpus: Path, local: Path, address: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with running_credential_server(ACCESS, SECRET) as server:
        for name, value in server.as_container.items():
            monkeypatch.setenv(name, value)
        server.minutes = 1.0

        def expire(path: str) -> None:
            if "shard-000000.tar" in path:
                server.identity = PACKER, PACKER_SECRET

        proxy.on_request = expire
        pack(corpus, address, shards=2, cluster=HERE, storage_options={"endpoint_url": proxy.endpoint})
    assert stored(s3, address) == files_of(local)
    assert {ACCESS, PACKER} == set(proxy.keys)


# Nothing tells them


def test_nothing_tells_them(
    s3: S3Server, proxy: FaultProxy, corpus: Path, address: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A job on a batch system that refuses an utterance and loses a shard, all at the most talkative."""
    broken = {**json.loads(corpus.read_text().splitlines()[0]), "audio_filepath": "audio/broken.flac"}
    (corpus.parent / "audio" / "broken.flac").write_bytes(b"no audio")
    (corpus.parent / "more.jsonl").write_text(f"{corpus.read_text()}{json.dumps(broken)}\n")
    source = f"{s3.upload(corpus.parent, 'more', ARCHIVE)}/more.jsonl"
    monkeypatch.setenv("PATH", f"{install_batch_system(tmp_path, 'qsub', 'qdel')}:{os.environ['PATH']}")
    monkeypatch.setenv("S3FS_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("DASK_LOGGING__DISTRIBUTED", "debug")
    options = {"interface": "lo", "memory": "1GB", "walltime": "00:10:00", "scheduler_options": {"host": "127.0.0.1"}}
    settings: dict[str, Any] = {
        "cluster": ClusterSettings("pbs", 1, options=options),
        "storage_options": options_of(s3, ACCESS, SECRET) | {"endpoint_url": proxy.endpoint},
        "source_storage_options": options_of(s3, ARCHIVIST, ARCHIVIST_SECRET),
    }
    proxy.faults = [Fault(match="shard-000001.tar", status=403, code="AccessDenied")]
    caplog.set_level("DEBUG")
    with pytest.raises(StorageError) as caught:
        pack(source, address, shards=2, retries=0, max_errors=1, **settings)
    told = ["".join(traceback.format_exception(caught.value)), repr(caught.value), repr(settings["cluster"])]
    left = stored(s3, address)
    assert {".uttershard/job.json", ".uttershard/plan.parquet"} <= left.keys()
    proxy.faults = []
    summary = pack(source, address, shards=2, max_errors=1, **settings)
    assert summary.refused == 1
    made = stored(s3, address)
    assert "errors.jsonl" in made
    logs = [record.getMessage() for record in caplog.records if not record.name.startswith("botocore")]
    told += [
        repr(summary),
        *logs,
        *capfd.readouterr(),
        *(data.decode("latin-1") for data in [*left.values(), *made.values()]),
    ]
    told += [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert "access denied" in (tmp_path / "jobs.log").read_text() + told[0]
    for secret in (SECRET, ARCHIVIST_SECRET, ACCESS, ARCHIVIST):
        assert not [text[:200] for text in told if secret in text]
