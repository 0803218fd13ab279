"""on_error="skip": a bad utterance is left out, counted and listed; the steps stay, and there is a cap."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from packed import Packed, seen
from torch.utils.data import DataLoader
from uttershard.pipeline import ShardSet
from uttershard.pipeline.dataset.digest import span_checksum
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.spans import INDEX_COLUMNS, SpanIndex
from uttershard.pipeline.reading.utterance import UtteranceError, split_span

PLACES: dict[str, dict[str, Any]] = {"threads": {"threads": 2}, "processes": {"num_workers": 2}}


def damage(packed: Packed, *keys: str) -> None:
    """Flip a byte in the audio of utterances."""
    shards = ShardSet.open(str(packed.address))
    table = shards.index(["key", "offset"]).to_pydict()
    rows = [(shard, row) for shard, count in enumerate(shards.rows_per_shard.tolist()) for row in range(count)]
    for (shard, _), key, offset in zip(rows, table["key"], table["offset"], strict=True):
        if key in keys:
            with packed.tar(shard).open("r+b") as file:
                file.seek(offset + 512 + 200)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 0x40]))


def some(packed: Packed, *numbers: int) -> list[str]:
    keys = list(packed.sources)
    return [keys[number] for number in numbers]


@pytest.mark.parametrize("place", sorted(PLACES))
def test_the_others_are_as_they_were(flac: Packed, broken: Packed, place: str) -> None:
    bad = some(broken, 5, 6, 30)
    damage(broken, *bad)
    with pytest.raises(DataError, match="damaged"):
        list(broken.loader(**PLACES[place]))
    loader = broken.loader(on_error="skip", **PLACES[place])
    whole = list(flac.loader())
    found = list(loader)
    assert [batch.step for batch in found] == list(range(len(loader)))
    assert len(found) == len(whole)
    for batch, complete in zip(found, whole, strict=True):
        kept = [row for row, key in enumerate(complete.keys) if key not in bad]
        assert batch.keys == [complete.keys[row] for row in kept]
        assert torch.equal(batch.audio_lengths, complete.audio_lengths[kept])
        assert torch.equal(batch.audio, complete.audio[kept][:, : int(batch.audio_lengths.max())])
        assert batch.text == [complete.text[row] for row in kept]
        assert [one.key for one in batch.skipped] == [key for key in complete.keys if key in bad]


@pytest.mark.parametrize("place", sorted(PLACES))
def test_they_are_counted_and_listed(broken: Packed, place: str) -> None:
    bad = some(broken, 5, 6, 30)
    damage(broken, *bad)
    loader = broken.loader(on_error="skip", **PLACES[place])
    assert loader.metrics()["skipped"] == 0
    for _ in loader:
        pass
    metrics = loader.metrics()
    assert (metrics["skipped"], metrics["epoch"]["skipped"]) == (3, 3)
    assert metrics["utterances"] == len(broken.sources) - 3
    listed = {one["key"]: one for one in metrics["skipped_utterances"]}
    assert sorted(listed) == sorted(bad)
    for one in listed.values():
        assert one["shard"].endswith(".tar")
        assert one["offset"] % 512 == 0
        assert one["reason"].startswith("its bytes are damaged")
        assert one["seconds"] > 0.1
    clean = sum(len(source.samples()) for key, source in broken.sources.items() if key not in bad) / 16_000
    assert abs(metrics["hours"] * 3600 - clean) < 0.01 * len(broken.sources)
    for _ in loader:
        pass
    assert loader.metrics()["skipped"] == 6, "a bad utterance counts in every epoch"
    assert loader.metrics()["epoch"]["skipped"] == 3


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_batch_of_which_nothing_is_left_repeats_its_neighbour(broken: Packed, place: str) -> None:
    plan = list(broken.loader(batch_bins=None, batch_size=4))
    damage(broken, *plan[0].keys, *plan[5].keys, *plan[6].keys)
    settings = {"batch_size": 4, "on_error": "skip", **PLACES[place]}
    found = list(broken.loader(**settings))
    assert [batch.step for batch in found] == [batch.step for batch in plan]
    assert [batch.step for batch in found if batch.filler] == [0, 5, 6]
    assert [found[step].keys for step in (0, 5, 6)] == [plan[step].keys for step in (1, 4, 7)]
    assert torch.equal(found[5].audio, plan[4].audio)
    assert [one.key for one in found[5].skipped] == plan[5].keys
    assert (found[5].epoch, found[5].step) == (0, 5)


def test_a_resumed_run_gets_the_same_filler(broken: Packed) -> None:
    plan = list(broken.loader(batch_size=4))
    damage(broken, *plan[5].keys)
    whole = [seen(batch) for batch in broken.loader(batch_size=4, on_error="skip")]
    first = broken.loader(batch_size=4, on_error="skip")
    batches = iter(first)
    for _ in range(5):
        next(batches)
    second = broken.loader(batch_size=4, on_error="skip")
    second.load_state_dict(first.state_dict())
    assert [seen(batch) for batch in second] == whole[5:]


def test_in_a_data_loader_of_ones_own(broken: Packed) -> None:
    plan = list(broken.loader(batch_size=4))
    damage(broken, plan[2].keys[1], *plan[5].keys)
    ours = broken.loader(batch_size=4, on_error="skip")
    found = list(DataLoader(ours.dataset, batch_size=None, num_workers=2))
    assert len(found) == len(plan)
    assert [len(batch.skipped) for batch in found] == [1 if step == 2 else 4 * (step == 5) for step in range(len(plan))]
    assert found[5].filler
    capped = broken.loader(batch_size=4, on_error="skip", max_skipped=1).dataset
    with pytest.raises(DataError, match="max_skipped allows 1"):
        list(DataLoader(capped, batch_size=None))


def test_ranks_keep_their_steps(broken: Packed) -> None:
    damage(broken, *some(broken, *range(0, 40, 3)))
    loaders = [broken.loader(on_error="skip", rank=rank, world_size=2) for rank in range(2)]
    assert len({len(list(loader)) for loader in loaders}) == 1


@pytest.mark.parametrize("place", sorted(PLACES))
def test_there_is_a_cap(broken: Packed, place: str) -> None:
    damage(broken, *some(broken, 5, 6, 30))
    assert len(list(broken.loader(on_error="skip", max_skipped=3, **PLACES[place])))
    with pytest.raises(DataError) as caught:
        list(broken.loader(on_error="skip", max_skipped=2, **PLACES[place]))
    message = str(caught.value)
    assert "3 utterances could not be read, max_skipped allows 2" in message
    assert "its bytes are damaged" in message


def test_nothing_left_at_all(broken: Packed) -> None:
    damage(broken, *broken.sources)
    with pytest.raises(DataError, match="not one utterance of epoch 0 could be read"):
        list(broken.loader(on_error="skip"))


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_shard_that_is_missing_or_cut_is_no_bad_utterance(broken: Packed, place: str) -> None:
    loader = broken.loader(on_error="skip", **PLACES[place])
    with broken.tar(1).open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1024)
    with pytest.raises(DataError, match="shard-000001"):
        list(loader)


def test_stereo_on_another_layout(stereo: Packed, tmp_path: Any) -> None:
    copy = stereo.copy(tmp_path / "broken")
    bad = some(copy, 3)
    damage(copy, *bad)
    plain = {key: row for batch in stereo.loader() for key, row in zip(batch.keys, batch.audio, strict=True)}
    for settings in PLACES.values():
        count = 0
        for batch in copy.loader(on_error="skip", **settings):
            assert batch.audio.shape == (len(batch), 2, int(batch.audio_lengths.max()))
            for key, row, length in zip(batch.keys, batch.audio, batch.audio_lengths.tolist(), strict=True):
                assert torch.equal(row[:, :length], plain[key][:, :length])
                count += 1
        assert count == len(stereo.sources) - 1


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b"Satz \xc3\xbc 7", b"Satz \xff\xff 7", "its text or metadata can't be read ('utf-8'"),
        (b'"take":7', b'"take":x', "its text or metadata can't be read (Expecting value"),
    ],
)
def test_text_and_metadata_that_can_not_be_read(flac: Packed, before: bytes, after: bytes, reason: str) -> None:
    # Another packer's tar may hold anything, and then its checksum is right all the same.
    shards = ShardSet.open(str(flac.address))
    index = SpanIndex.from_table(shards.index(INDEX_COLUMNS), shards.rows_per_shard)
    row = next(row for row in range(len(index)) if flac.sources[index.key(row)].meta["take"] == 7)
    spec = index.spec(np.array([row]), epoch=0, step=0)
    tar = flac.tar(int(spec.spans.shard[0])).read_bytes()
    span = tar[int(spec.spans.offset[0]) :][: int(spec.spans.nbytes[0])]
    assert span.count(before) == 1
    span = span.replace(before, after)
    with pytest.raises(UtteranceError) as caught:
        split_span(replace(spec, xxh3=np.array([span_checksum(span)])), 0, memoryview(span), "a.tar")
    assert str(caught.value).startswith(f"a.tar: utterance {spec.keys[0]!r} at offset")
    assert reason in str(caught.value)


def test_settings_that_can_not_be(flac: Packed) -> None:
    for settings, message in (
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"max_skipped": 5}, "leave it out, or set on_error='skip'"),
        ({"on_error": "skip", "max_skipped": 0}, "max_skipped=0"),
        ({"on_epoch_end": 3}, "give a function that takes the metrics"),
        ({"timeout": "1 h"}, "every wait has a limit"),
        ({"stats": 3}, "that `uttershard stats` wrote"),
        ({"frame_shift": "0.01"}, "give seconds"),
    ):
        with pytest.raises(ConfigError) as caught:
            flac.loader(**settings)
        assert message in str(caught.value)
