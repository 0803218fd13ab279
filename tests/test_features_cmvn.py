"""GlobalCmvn and UtteranceCmvn: mean 0 and variance 1, over the corpus or over each utterance."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features_cases import padded
from packed import Packed
from uttershard.pipeline import Batch, Fbank, GlobalCmvn, LogMel, SpecAugment, UtteranceCmvn
from uttershard.pipeline.dataset.feats_stats import MadeOf, encode_sums
from uttershard.pipeline.dataset.stats import DatasetStats
from uttershard.pipeline.errors import ConfigError, DataError, UttershardError

FRAMES = (50, 7, 120, 1)


def corpus() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(frames, 3, generator=generator) * torch.tensor([1.0, 5.0, 0.2]) - 8 for frames in FRAMES]


def write_stats(path: Path, utterances: list[torch.Tensor]) -> Path:
    frames = torch.cat(utterances).double().numpy()
    np.savez(path, count=len(frames), sum=frames.sum(0), sum_square=(frames**2).sum(0))
    return path


def test_the_corpus_has_mean_0_and_variance_1(tmp_path: Path) -> None:
    utterances = corpus()
    cmvn = GlobalCmvn(write_stats(tmp_path / "feats_stats.npz", utterances))
    normalised, lengths = cmvn(*padded(utterances, extra=5, fill=float("nan")))
    frames = torch.cat([one[:length] for one, length in zip(normalised, lengths.tolist(), strict=True)])
    torch.testing.assert_close(frames.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(frames.var(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    for one, length in zip(normalised, lengths.tolist(), strict=True):
        assert not one[length:].any()


def test_parts_of_it(tmp_path: Path) -> None:
    utterances = corpus()
    stats = write_stats(tmp_path / "feats_stats.npz", utterances)
    features, lengths = padded(utterances[:1])
    frames = torch.cat(utterances)
    mean_only, _ = GlobalCmvn(stats, norm_std=False)(features, lengths)
    torch.testing.assert_close(mean_only[0], utterances[0] - frames.mean(0), atol=1e-5, rtol=0)
    std_only, _ = GlobalCmvn(stats, norm_mean=False)(features, lengths)
    torch.testing.assert_close(std_only[0], utterances[0] / frames.std(0, correction=0), atol=1e-3, rtol=1e-4)


def test_a_constant_dimension_is_only_shifted() -> None:
    constant = GlobalCmvn({"count": 4, "sum": [12.0], "sum_square": [36.0]})
    assert constant(torch.tensor([[[3.0], [4.0]]]), torch.tensor([2]))[0].flatten().tolist() == [0.0, 1.0]


def test_statistics_travel_with_the_checkpoint(tmp_path: Path) -> None:
    cmvn = GlobalCmvn(write_stats(tmp_path / "feats_stats.npz", corpus()))
    other = GlobalCmvn({"count": 1, "sum": [0.0] * 3, "sum_square": [1.0] * 3})
    other.load_state_dict(cmvn.state_dict())
    assert torch.equal(other.mean, cmvn.mean)
    assert torch.equal(other.std, cmvn.std)


def test_each_utterance_has_mean_0_and_variance_1_whatever_its_padding() -> None:
    utterances = corpus()
    normalised, lengths = UtteranceCmvn()(*padded(utterances, extra=11, fill=float("inf")))
    for row, (one, length) in enumerate(zip(normalised, lengths.tolist(), strict=True)):
        mean, std = utterances[row].mean(0), utterances[row].std(0, correction=0)
        expected = (utterances[row] - mean) / std.clamp(min=1e-5)
        torch.testing.assert_close(one[:length], expected, atol=1e-4, rtol=0)
        assert not one[length:].any()


def test_utterance_cmvn_in_parts_and_its_gradient() -> None:
    features, lengths = padded([*corpus(), torch.zeros(4, 3)])
    features.requires_grad_()
    only_mean, _ = UtteranceCmvn(norm_std=False)(features, lengths)
    torch.testing.assert_close(only_mean[0, :50], features[0, :50] - features[0, :50].mean(0), atol=1e-5, rtol=0)
    only_std, _ = UtteranceCmvn(norm_mean=False)(features, lengths)
    torch.testing.assert_close(only_std[0, :50], features[0, :50] / features[0, :50].std(0, correction=0))
    UtteranceCmvn()(features, lengths)[0].square().sum().backward()
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


def test_bfloat16_is_normalised_in_float32() -> None:
    features, lengths = padded(corpus())
    normalised, _ = UtteranceCmvn()(features.bfloat16(), lengths)
    assert normalised.dtype == torch.float32


@pytest.mark.parametrize(
    ("stats", "error", "message"),
    [
        ({"count": 1, "sum": [0.0]}, DataError, "no sum_square among count, sum"),
        ({"count": 0, "sum": [0.0], "sum_square": [0.0]}, DataError, "a positive number"),
        ({"count": 1, "sum": [0.0], "sum_square": [0.0, 1.0]}, DataError, "equally long"),
        ({"count": 1, "sum": [float("nan")], "sum_square": [0.0]}, DataError, "NaN"),
        ("nowhere.npz", ConfigError, "uttershard stats"),
    ],
)
def test_bad_statistics_are_refused(stats: Any, error: type[UttershardError], message: str) -> None:
    with pytest.raises(error) as caught:
        GlobalCmvn(stats)
    assert message in str(caught.value)


def test_a_file_that_is_no_npz(tmp_path: Path) -> None:
    for name, content in (("text.npz", b"mean variance"), ("empty.npz", b""), ("zip.npz", b"PK\x03\x04broken")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: .*give feats_stats.npz, which `uttershard stats` writes"):
            GlobalCmvn(path)
    with pytest.raises(DataError, match=r"can't be read \(Is a directory\); give feats_stats.npz"):
        GlobalCmvn(tmp_path)


def write_ours(path: Path, features: str = "fbank", **options: Any) -> Path:
    made_of = MadeOf("xxh3_128:ab", {"features": features, "feature_options": options, "sample_rate": 16_000})
    path.write_bytes(encode_sums(2, np.array([2.0]), np.array([10.0]), made_of))
    return path


def test_no_flipped_bit_changes_the_statistics_or_what_they_are_of(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "feats_stats.npz", use_log=False)
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 7):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert GlobalCmvn(path, transform=Fbank(use_log=False), dataset_digest="xxh3_128:ab").mean.tolist() == [1.0]
        except DataError as error:
            assert "feats_stats.npz: " in str(error)


def test_damage_in_a_compressed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "feats_stats.npz"
    np.savez_compressed(path, count=5.0, sum=np.arange(80.0), sum_square=np.arange(80.0) ** 2)
    data = path.read_bytes()
    for bit in range(0, len(data) * 8, 31):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with contextlib.suppress(UttershardError):  # not all of a zip counts
            GlobalCmvn(path)


def test_statistics_say_what_they_are_of(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "feats_stats.npz", high_freq=-400, frame_length_ms=25)
    assert sorted(np.load(path, allow_pickle=False)) == ["count", "sum", "sum_square"], "and ESPnet adds all of them up"
    assert GlobalCmvn(path, transform=Fbank(high_freq=7600.0), dataset_digest="xxh3_128:ab").mean.tolist() == [1.0]
    for transform, message in (
        (Fbank(), r"\(high_freq: 7600\.0 there, 8000\.0 here\)"),
        (Fbank(high_freq=7600, sample_rate=48_000), r"\(sample_rate: 16000 there, 48000 here; window_samples: 400"),
        (LogMel(), "of features fbank, not LogMel"),
    ):
        with pytest.raises(DataError, match=rf"feats_stats\.npz: .*{message}.*run `uttershard stats`"):
            GlobalCmvn(path, transform=transform)
    with pytest.raises(
        DataError, match="of the dataset xxh3_128:ab, but wanted are those of xxh3_128:cd: they are stale"
    ):
        GlobalCmvn(path, dataset_digest="xxh3_128:cd")
    own = write_ours(tmp_path / "own.npz", "mymodule:pitch")
    with pytest.raises(DataError, match="of features mymodule:pitch, not Fbank"):
        GlobalCmvn(own, transform=Fbank())


def test_statistics_that_do_not_say_what_they_are_of(tmp_path: Path) -> None:
    path = write_stats(tmp_path / "espnet.npz", corpus())
    for stats in (path, {"count": 1, "sum": [0.0], "sum_square": [1.0]}):
        for wanted in ({"transform": Fbank()}, {"dataset_digest": "xxh3_128:ab"}):
            with pytest.raises(ConfigError, match="do not say what they are of"):
                GlobalCmvn(stats, **wanted)
    with pytest.raises(ConfigError, match="transform=SpecAugment: give the Fbank or LogMel"):
        GlobalCmvn(write_ours(path), transform=SpecAugment())  # type: ignore[arg-type]


def test_statistics_of_a_dataset_are_exact_and_say_what_they_are_of() -> None:
    features = {"frames": 4, "mean": [1e9], "variance": [4.0]}
    settings = {"features": "fbank", "feature_options": {}, "sample_rate": 16_000, "tokenizer": None}
    stats = DatasetStats("a.json", {"dataset_digest": "xxh3_128:ab", "settings": settings, "features": features})
    assert GlobalCmvn(stats, transform=Fbank(), dataset_digest="xxh3_128:ab").std.tolist() == [2.0]
    assert GlobalCmvn(stats.sums).std.tolist() != [2.0], "sums of squares do not hold it"
    with pytest.raises(DataError, match=r"a\.json: .*use_log: True there, False here"):
        GlobalCmvn(stats, transform=Fbank(use_log=False))
    stats.body["features"]["frames"] = 0
    with pytest.raises(DataError, match=r"a\.json: no features were computed"):
        GlobalCmvn(stats)


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", count=np.array([{}], object), sum=np.array([1.0]), sum_square=np.array([1.0]))
    with pytest.raises(DataError, match="allow_pickle=False"):
        GlobalCmvn(tmp_path / "a.npz")


def test_features_of_another_size() -> None:
    cmvn = GlobalCmvn({"count": 1, "sum": [0.0] * 3, "sum_square": [1.0] * 3})
    with pytest.raises(ConfigError, match="3 dimensions, the features 80"):
        cmvn(torch.zeros(1, 5, 80), torch.tensor([5]))


def test_the_chain_of_the_readme(flac: Packed, tmp_path: Path) -> None:
    fbank, mask = Fbank(num_mel_bins=80), SpecAugment(seed=0)
    energies = [features[:length] for batch in flac.loader() for features, length in _rows(fbank, batch)]
    cmvn = GlobalCmvn(write_stats(tmp_path / "feats_stats.npz", energies))
    for batch in flac.loader(num_workers=1):
        features, lengths = cmvn(*fbank(batch.audio, batch.audio_lengths))
        features, lengths = mask(features, lengths, keys=batch.keys, epoch=batch.epoch)
        assert features.shape == (len(batch), int(lengths.max()), 80)
        assert torch.isfinite(features).all()


def _rows(fbank: Fbank, batch: Batch) -> Iterator[tuple[torch.Tensor, int]]:
    features, lengths = fbank(batch.audio, batch.audio_lengths)
    yield from zip(features, lengths.tolist(), strict=True)
