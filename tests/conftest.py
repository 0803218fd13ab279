"""Fixtures that any test may use."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import s3fs
from fault_proxy import FaultProxy
from hypothesis import HealthCheck, settings
from packed import Packed, make_dataset
from s3_cases import RemoteDataset
from s3_server import S3Server, start_server, stop
from uttershard.pipeline.remote import clients, retry
from uttershard.writers.cluster import tasks
from uttershard.writers.targets import attempts

ROOT = Path(__file__).resolve().parents[1]

# As from a terminal: whatever runs the tests may have Ctrl-C ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure. Everybody tries the same examples; others come with `--hypothesis-profile=search`.
settings.register_profile(
    "untimed", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("untimed"), derandomize=False)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo corpus: `manifest.jsonl` and `kaldi/` over the same `audio/`."""
    return ROOT / "demo"


@pytest.fixture(scope="session")
def flac(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """48 utterances of mono FLAC at 16 kHz in four shards."""
    return make_dataset(tmp_path_factory.mktemp("flac"))


@pytest.fixture(scope="session")
def wav(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The same samples as WAV."""
    return make_dataset(tmp_path_factory.mktemp("wav"), ending="wav")


@pytest.fixture(scope="session")
def stereo(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Utterances of two channels."""
    return make_dataset(tmp_path_factory.mktemp("stereo"), utterances=16, shards=2, channels=(2,))


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Utterances of different rates and channels, as WAV."""
    return make_dataset(
        tmp_path_factory.mktemp("mixed"),
        utterances=16,
        shards=2,
        ending="wav",
        rates=(8_000, 16_000),
        channels=(1, 2, 2),
    )


@pytest.fixture
def broken(flac: Packed, tmp_path: Path) -> Packed:
    """A copy of `flac` that a test may damage."""
    return flac.copy(tmp_path / "broken")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with one bucket."""
    server, process = start_server(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    stop(process)


@pytest.fixture(scope="session")
def remote(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> RemoteDataset:
    """48 utterances in eight shards, in the S3 server and on the disk."""
    packed = make_dataset(tmp_path_factory.mktemp("remote"), shards=8)
    return RemoteDataset(packed, s3.upload(packed.address, "train"), s3)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of the S3 server, harmless until it is given faults."""
    running = FaultProxy(s3.endpoint).start()
    endpoint = running.endpoint
    yield running
    running.stop()
    # Its clients are of no use any more, and take 12 MB each.
    s3fs.S3FileSystem.clear_instance_cache()
    for key, place in list(clients._places.items()):
        if getattr(place.filesystem, "endpoint_url", None) == endpoint:
            del clients._places[key]


@pytest.fixture
def instant_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pauses between requests to a store pass at once, and count: a deadline of minutes ends in a moment.

    So an answer that is slow to come on a busy machine is not taken for one that never comes.
    """
    passed = threading.local()

    def sleep(seconds: float) -> None:
        passed.seconds = getattr(passed, "seconds", 0.0) + seconds

    def monotonic() -> float:
        return time.monotonic() + getattr(passed, "seconds", 0.0)

    for module in (retry, attempts):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=monotonic))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(tasks, "PAUSES_SECONDS", (0.0,))
