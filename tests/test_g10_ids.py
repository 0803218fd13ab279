"""G10: any id is stored, found and returned as written; what can't be one is refused, naming the places."""

import json
import tarfile
from pathlib import Path

import pytest
from corpora import read_errors, write_audio, write_jsonl
from uttershard.pipeline.dataset.members import member_name
from uttershard.pipeline.dataset.shardset import ShardSet
from uttershard.pipeline.dataset.tar import walk_span
from uttershard.writers import pack

IDS = [
    "84-121123-0000",
    "tom/chapter.1/line.2",
    "tom/chapter.1/line.3",
    "../../etc/passwd",
    "/absolute",
    ".hidden",
    "a b\u3000c",
    "日本語の発話",
    "e\u0301",  # e and an accent: another id than the next, and neither is normalised into the other
    "\u00e9",
    "\U0001f600",
    "100%",
    "100%25",
    "Utt",
    "utt",
    "utt.flac",
    "x" * 300,
    "x" * 299 + "y",
    "ü" * 150,
    'quo"te\\back',
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All ids in one dataset, beside three that are refused."""
    folder = tmp_path_factory.mktemp("ids")
    write_audio(folder / "a.wav", 0.1)
    bad = ["", "new\nline", "tom/chapter.1/line.2"]
    records = [{"audio_filepath": "a.wav", "id": key, "text": key} for key in [*IDS, *bad]]
    pack(write_jsonl(folder / "m.jsonl", records), folder / "out", shards=3, workers=1, max_errors=3)
    return folder / "out"


def test_ids_come_back_as_written(packed: Path) -> None:
    dataset = ShardSet.open(str(packed))
    found = []
    for shard in range(3):
        table, _ = dataset.sidecar(shard)
        data = memoryview((packed / f"shard-{shard:06d}.tar").read_bytes())
        for row in table.to_pylist():
            key = row["key"]
            found.append(key)
            span = data[row["offset"] : row["offset"] + row["nbytes"]]
            members = {
                member.name: bytes(span[member.start : member.start + member.size]) for member in walk_span(span)
            }
            assert set(members) == {f"{member_name(key)}.{ending}" for ending in ("json", "txt", "wav")}
            assert json.loads(members[f"{member_name(key)}.json"]) == {"id": key}
            assert members[f"{member_name(key)}.txt"].decode() == key
    assert sorted(found) == sorted(IDS)


def test_member_names_are_harmless_and_unique(packed: Path) -> None:
    names = []
    for path in sorted(packed.glob("*.tar")):
        with tarfile.open(path) as tar:
            names += tar.getnames()
    assert len(names) == len({name.lower() for name in names}) + 3  # Utt and utt differ in case only
    assert all(name.count(".") == 1 and "/" not in name and len(name) <= 100 for name in names)


def test_bad_ids_are_refused(packed: Path) -> None:
    line = len(IDS) + 1
    assert read_errors(packed) == [
        {"key": "", "source": f"m.jsonl:{line}", "reason": "the id is empty"},
        {
            "key": "new\nline",
            "source": f"m.jsonl:{line + 1}",
            "reason": "the id 'new\\nline' has a control character (U+000A) at position 3",
        },
        {
            "key": "tom/chapter.1/line.2",
            "source": f"m.jsonl:{line + 2}",
            "reason": f"the id is there twice: at m.jsonl:2 and at m.jsonl:{line + 2}",
        },
    ]
