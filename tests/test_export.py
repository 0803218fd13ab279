"""Ways out: what is exported and packed again has the same utterances, samples and texts; other tools read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from corpora import write_jsonl
from source_checks import list_corpus
from uttershard.pipeline import ShardSet
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.writers import export, pack
from uttershard.writers.exports.run import LAYOUTS
from uttershard.writers.exports.utterances import read_utterances

SHARDS = 2


@pytest.fixture(scope="module")
def packed(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo corpus, packed."""
    target = tmp_path_factory.mktemp("packed") / "demo"
    pack(demo / "manifest.jsonl", target, shards=SHARDS, workers=2, columns=("speaker", "language"))
    return target


def content(dataset: Path) -> dict[str, tuple[Any, ...]]:
    """What a dataset says of each utterance, by id."""
    return {
        utterance.key: (
            utterance.num_samples,
            utterance.sample_rate,
            utterance.channels,
            utterance.text,
            utterance.metadata.get("speaker"),
            utterance.metadata.get("language"),
        )
        for utterance in read_utterances(ShardSet.open(str(dataset)), None)
    }


def source_of(layout: str, out: Path, packed: Path, *, extract: bool) -> tuple[Path | str, Mapping[str, Any]]:
    """Where a corpus exported in a layout begins, and what `pack` must be told to read it."""
    tars = f"{packed}/shard-{{000000..{SHARDS - 1:06d}}}.tar"
    if layout == "nemo":
        if extract:
            return out / "manifest.json", {}
        return out / "tarred_audio_manifest.json", {"source_options": {"tars": tars}}
    if layout == "jsonl":
        return out / "manifest.jsonl", {}
    if layout == "webdataset":
        return (out if extract else out / "shards.list"), {}
    return out, {} if extract else {"allow_pipes": True}


@pytest.mark.parametrize("extract", [False, True], ids=["pointing", "extracted"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_then_pack_gives_the_same_utterances(packed: Path, tmp_path: Path, layout: str, extract: bool) -> None:
    summary = export(str(packed), layout, str(tmp_path / "out"), extract=extract)
    assert all(Path(file).is_file() for file in summary.files)
    source, settings = source_of(layout, tmp_path / "out", packed, extract=extract)
    again = pack(source, tmp_path / "again", from_=layout, shards=1, workers=2, **settings)
    assert again.refused == 0
    assert content(tmp_path / "again") == content(packed)


ODD_IDS = [
    "a/b",
    "a.b",
    "..",
    "😀",
    "e\u0301",
    "\u00e9",
    "x" * 300,
    "%2F",
    "a\\b",
    "it's",
    "$(id)",
    "-n",
    "ab#range=1+2",
]
ODD_TEXTS = [
    "  two  ends\t",
    "tab\tin",
    "no-break\u00a0",
    "\u3000wide",
    "",
    None,
    "ls\u2028x",
    '"q"',
    "'s",
    "$HOME `x`",
    "\x85nel",
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of every codec and depth, many channels, odd ids and odd texts."""
    folder = tmp_path_factory.mktemp("odd")
    kinds = {"a.flac": (1, "PCM_16"), "b.wav": (2, "PCM_16"), "c.flac": (1, "PCM_24"), "d.wav": (8, "PCM_24")}
    kinds |= {"e.wav": (1, "DOUBLE"), "f.mp3": (1, "MPEG_LAYER_III"), "g.ogg": (2, "VORBIS"), "h.ogg": (1, "OPUS")}
    for number, (name, (channels, subtype)) in enumerate(kinds.items()):
        samples = np.random.default_rng(number).uniform(-0.9, 0.9, (8007, channels))
        soundfile.write(folder / name, samples, 16_000, subtype=subtype)
    files, records = list(kinds), []
    for number, key in enumerate(ODD_IDS):
        text = ODD_TEXTS[number % len(ODD_TEXTS)]
        records.append({"audio_filepath": files[number % len(files)], "id": key, "text": text})
    pack(write_jsonl(folder / "m.jsonl", records), folder / "packed", shards=SHARDS, workers=2)
    return folder / "packed"


@pytest.mark.parametrize(
    ("layout", "extract"), [("kaldi", False), ("espnet", True), ("lhotse", False), ("nemo", True), ("jsonl", False)]
)
def test_odd_ids_texts_and_audio_come_back(odd: Path, tmp_path: Path, layout: str, extract: bool) -> None:
    def audio_and_text(dataset: Path, place: Path) -> dict[str, tuple[bytes, str | None]]:
        utterances = read_utterances(ShardSet.open(str(dataset)), place)
        return {each.key: (Path(each.audio.address).read_bytes(), each.text) for each in utterances}

    summary = export(str(odd), layout, str(tmp_path / "out"), extract=extract)
    source, settings = source_of(layout, tmp_path / "out", odd, extract=extract)
    pack(source, tmp_path / "again", from_=layout, shards=1, workers=2, **settings)
    expected = audio_and_text(odd, tmp_path / "before")
    assert list(expected) != []
    if layout in ("kaldi", "espnet"):
        trimmed = {key for key, (_, text) in expected.items() if text and text != text.strip(" \t")}
        assert summary.trimmed == len(trimmed) == 2
        expected |= {key: (expected[key][0], str(expected[key][1]).strip(" \t")) for key in trimmed}
    if layout == "nemo":  # which requires a text
        expected = {key: (audio, text or "") for key, (audio, text) in expected.items()}
    assert audio_and_text(tmp_path / "again", tmp_path / "after") == expected


def test_extracted_audio_is_the_audio_that_was_packed(packed: Path, demo: Path, tmp_path: Path) -> None:
    export(str(packed), "kaldi", str(tmp_path / "out"), extract=True)
    places = dict(line.split(" ", 1) for line in (tmp_path / "out/wav.scp").read_text(encoding="utf-8").splitlines())
    known = content(packed)
    assert places.keys() == known.keys()
    for key, place in places.items():
        assert soundfile.info(place).samplerate == known[key][1]
    flac = [place for place in places.values() if place.endswith(".flac")]
    sources = {path.read_bytes() for path in (demo / "audio").rglob("*.flac")}
    # Those that were cut out of a long recording were encoded anew; all others are the source's bytes.
    assert sum(Path(place).read_bytes() in sources for place in flac) >= len(flac) - 9


def test_kaldi_tables_are_sorted_by_bytes(packed: Path, tmp_path: Path) -> None:
    export(str(packed), "espnet", str(tmp_path / "out"))
    for name in ("wav.scp", "text", "utt2spk", "utt2dur", "speech_shape", "feats_shape", "text_shape"):
        keys = [line.split(b" ", 1)[0] for line in (tmp_path / "out" / name).read_bytes().splitlines()]
        assert keys == sorted(keys), name
        assert len(keys) == len(content(packed)), name


def test_shape_files_say_what_the_audio_is(packed: Path, tmp_path: Path) -> None:
    export(str(packed), "espnet", str(tmp_path / "out"))
    known = content(packed)
    for line in (tmp_path / "out/speech_shape").read_text(encoding="utf-8").splitlines():
        key, samples = line.split(" ")
        assert int(samples) == known[key][0]
    for line in (tmp_path / "out/text_shape").read_text(encoding="utf-8").splitlines():
        key, characters = line.split(" ")
        assert int(characters) == len(known[key][3])
    for line in (tmp_path / "out/feats_shape").read_text(encoding="utf-8").splitlines():
        key, shape = line.split(" ")
        assert shape == f"{1 + (known[key][0] - 400) // 160},80"


@pytest.mark.parametrize("extract", [False, True], ids=["pointing", "extracted"])
def test_lhotse_reads_the_manifests(packed: Path, tmp_path: Path, extract: bool) -> None:
    from lhotse import CutSet, RecordingSet, SupervisionSet

    export(str(packed), "lhotse", str(tmp_path / "out"), extract=extract)
    cuts = CutSet.from_manifests(
        RecordingSet.from_file(tmp_path / "out/recordings.jsonl"),
        SupervisionSet.from_file(tmp_path / "out/supervisions.jsonl"),
    )
    known = content(packed)
    seen = {}
    for cut in cuts:
        (supervision,) = cut.supervisions
        seen[supervision.recording_id] = supervision.text
    assert seen == {key: row[3] for key, row in known.items()}
    flac = next(
        cut for cut in cuts if cut.recording.sources[0].source.rstrip().endswith((".flac", "44")) or not extract
    )
    assert flac.load_audio().shape[-1] == flac.num_samples


def test_webdataset_reads_the_list(packed: Path, tmp_path: Path) -> None:
    import webdataset

    export(str(packed), "webdataset", str(tmp_path / "out"))
    tars = (tmp_path / "out/shards.list").read_text().split()
    records = webdataset.WebDataset(tars, shardshuffle=False).decode()
    assert {record["json"]["id"] for record in records} == content(packed).keys()


@pytest.mark.parametrize("extract", [False, True], ids=["pointing", "extracted"])
@pytest.mark.parametrize("name", ["", "shards.list"], ids=["folder", "list"])
def test_exported_tars_are_found_without_being_told_their_kind(
    packed: Path, tmp_path: Path, name: str, extract: bool
) -> None:
    export(str(packed), "webdataset", str(tmp_path / "out"), extract=extract)
    listing = list_corpus(tmp_path / "out" / name)
    assert not listing.refused
    assert set(listing.utterances["key"].to_pylist()) == content(packed).keys()


def test_a_list_of_tars_that_are_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards.list").write_text("a.tar\n")
    with pytest.raises(DataError, match=r"shards\.list: a tar that it lists is not there.*a\.tar"):
        list_corpus(tmp_path)
    (tmp_path / "shards.list").write_text("\n")
    with pytest.raises(ConfigError, match="an empty list"):
        list_corpus(tmp_path)


def test_what_a_layout_cannot_hold_is_named(tmp_path: Path) -> None:
    (tmp_path / "a b.wav").write_bytes(b"")
    soundfile.write(tmp_path / "a b.wav", np.zeros(1600, np.int16), 16_000)
    pack(tmp_path, tmp_path / "packed", from_="folder", shards=1, workers=1)
    with pytest.raises(DataError, match=r"'a b'.*blank"):
        export(str(tmp_path / "packed"), "kaldi", str(tmp_path / "out"))


def test_export_refuses_unknown_layouts_and_full_folders(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known are kaldi, espnet"):
        export(str(packed), "kaldy", str(tmp_path / "out"))
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something already"):
        export(str(packed), "kaldi", str(tmp_path))


def test_a_damaged_utterance_is_named(packed: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(packed, tmp_path / "copy")
    tar = copy / "shard-000001.tar"
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 1
    tar.write_bytes(data)
    with pytest.raises(DataError, match=r"shard-000001\.tar: utterance .* at offset \d+: its bytes are damaged"):
        export(str(copy), "jsonl", str(tmp_path / "out"))
    assert not (tmp_path / "out/manifest.jsonl").exists()
