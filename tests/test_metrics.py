"""What a loader counts, says at the end of an epoch, and hands to a callback."""

import logging
from typing import Any

import pytest
from packed import BINS, Packed

PLACES: dict[str, dict[str, Any]] = {"threads": {"threads": 2}, "processes": {"num_workers": 1}}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_counts_of_an_epoch_and_of_all(flac: Packed, place: str) -> None:
    loader = flac.loader(**PLACES[place])
    assert loader.metrics()["epoch"] is None
    seconds = sum(source.samples().shape[-1] for source in flac.sources.values()) / 16_000
    for epoch in range(2):
        loader.set_epoch(epoch)
        steps = sum(1 for _ in loader)
        metrics = loader.metrics()
        assert metrics["epoch"]["epoch"] == epoch
        assert (metrics["epoch"]["steps"], metrics["epoch"]["utterances"]) == (steps, len(flac.sources))
        assert abs(metrics["epoch"]["hours"] * 3600 - seconds) < 0.01 * len(flac.sources)
        assert metrics["utterances"] == (epoch + 1) * len(flac.sources)
        assert 0 < metrics["epoch"]["decode_seconds"] <= metrics["decode_seconds"]
        assert 0 < metrics["epoch"]["wait_seconds"] <= metrics["epoch"]["elapsed_seconds"]
        assert 0 < metrics["epoch"]["first_batch_seconds"] <= metrics["epoch"]["wait_seconds"]
        assert (metrics["skipped"], metrics["skipped_utterances"]) == (0, [])


def test_padding_and_fill_are_those_of_the_plan(flac: Packed) -> None:
    loader = flac.loader()
    plan = loader.plan
    for _ in loader:
        pass
    metrics = loader.metrics()["epoch"]
    assert metrics["padding"] == pytest.approx(plan.padding)
    assert metrics["fill"] == pytest.approx(plan.fill)
    assert plan.fill == pytest.approx(plan.ranks[0].padded_frames / (plan.steps * BINS))


def test_a_line_and_a_call_at_the_end_of_an_epoch(flac: Packed, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[dict[str, Any]] = []
    loader = flac.loader(on_epoch_end=calls.append)
    with caplog.at_level(logging.INFO, logger="uttershard"):
        for epoch in (0, 4):
            loader.set_epoch(epoch)
            steps = 0
            for _ in loader:
                assert len(calls) == (epoch > 0), "not before the end"
                steps += 1
    assert [call["epoch"] for call in calls] == [0, 4]
    assert calls[1]["steps"] == steps
    assert calls[1]["utterances"] == len(flac.sources)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 2
    assert lines[1].startswith(f"epoch 4: {steps} steps, {len(flac.sources)} utterances, 0.0")
    assert "padding" in lines[1]
    assert "fill" in lines[1]
    assert "skipped" not in lines[1]


def test_an_epoch_that_is_left_early_is_not_over(flac: Packed) -> None:
    calls: list[dict[str, Any]] = []
    loader = flac.loader(on_epoch_end=calls.append)
    for batch in loader:
        if batch.step == 1:
            break
    assert calls == []
    assert loader.metrics()["epoch"]["steps"] == 2
    resumed = flac.loader(on_epoch_end=calls.append)
    resumed.load_state_dict(loader.state_dict())
    steps = sum(1 for _ in resumed)
    assert [call["steps"] for call in calls] == [steps]
