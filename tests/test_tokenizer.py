"""tokenizer=: a function, SentencePiece or Hugging Face; tokens in the batch, wherever decoding runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
from packed import Packed
from torch.utils.data import DataLoader
from uttershard.pipeline import Batch, Utterance
from uttershard.pipeline.errors import ConfigError, DataError, UttershardError

HAS_TEXT = "text_chars > 0"


def characters(text: str) -> list[int]:
    """Number the characters of a text."""
    return [ord(character) for character in text]


def check(packed: Packed, batches: Any, pad: int = 0, tokenize: Any = characters) -> int:
    """Compare the tokens of batches with those of what was packed; return how many utterances there were."""
    count = 0
    for batch in batches:
        assert isinstance(batch, Batch)
        assert batch.tokens is not None
        assert batch.token_lengths is not None
        assert (batch.tokens.dtype, batch.token_lengths.dtype) == (torch.int64, torch.int64)
        assert batch.tokens.shape == (len(batch), int(batch.token_lengths.max()))
        for key, row, length in zip(batch.keys, batch.tokens, batch.token_lengths.tolist(), strict=True):
            assert row[:length].tolist() == list(tokenize(packed.sources[key].text))
            assert (row[length:] == pad).all()
            count += 1
    return count


@pytest.fixture(scope="module")
def spoken(flac: Packed) -> int:
    """How many utterances have a transcript."""
    return sum(source.text is not None for source in flac.sources.values())


@pytest.mark.parametrize("settings", [{"threads": 2}, {"num_workers": 2}], ids=["threads", "processes"])
@pytest.mark.parametrize("pad", [0, -1])
def test_a_function(flac: Packed, spoken: int, settings: dict[str, Any], pad: int) -> None:
    loader = flac.loader(tokenizer=characters, token_pad=pad, where=HAS_TEXT, **settings)
    assert check(flac, loader, pad) == spoken


@pytest.mark.parametrize("give", [tuple, np.array, lambda ids: np.array(ids, np.uint16), torch.tensor])
def test_what_it_may_give(flac: Packed, spoken: int, give: Any) -> None:
    loader = flac.loader(tokenizer=lambda text: give(characters(text)), where=HAS_TEXT)
    assert check(flac, loader) == spoken


def test_after_map_utterance_it_sees_the_new_text(flac: Packed) -> None:
    def upper(utterance: Utterance) -> Utterance:
        utterance.text = (utterance.text or "").upper()
        return utterance

    loader = flac.loader(tokenizer=characters, map_utterance=upper)
    assert check(flac, loader, tokenize=lambda text: characters((text or "").upper())) == len(flac.sources)


def test_in_a_data_loader_of_ones_own(flac: Packed, spoken: int) -> None:
    ours = flac.loader(tokenizer=characters, where=HAS_TEXT)
    assert check(flac, DataLoader(ours.dataset, batch_size=None, num_workers=1)) == spoken


def test_to_moves_tokens_too(flac: Packed) -> None:
    batch = next(iter(flac.loader(tokenizer=characters, where=HAS_TEXT)))
    there = batch.to("meta")
    assert there.tokens is not None
    assert there.token_lengths is not None
    assert (there.tokens.device.type, there.token_lengths.device.type) == ("meta", "meta")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, flac: Packed) -> Path:
    """A SentencePiece model of the texts."""
    folder = tmp_path_factory.mktemp("model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([source.text for source in flac.sources.values() if source.text]),
        model_prefix=str(folder / "bpe"),
        vocab_size=30,
        model_type="bpe",
        minloglevel=2,
    )
    return folder / "bpe.model"


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("settings", [{"threads": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}])
def test_sentencepiece(flac: Packed, spoken: int, model: Path, settings: dict[str, Any], as_text: bool) -> None:
    expected = sentencepiece.SentencePieceProcessor(model_file=str(model))
    loader = flac.loader(tokenizer=str(model) if as_text else model, where=HAS_TEXT, **settings)
    assert check(flac, loader, tokenize=expected.encode) == spoken


def test_a_sentencepiece_object(flac: Packed, spoken: int, model: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert check(flac, flac.loader(tokenizer=processor, where=HAS_TEXT), tokenize=processor.encode) == spoken


@pytest.mark.parametrize("settings", [{"threads": 2}, {"num_workers": 1, "multiprocessing_context": "spawn"}])
def test_hugging_face_tokenizers(flac: Packed, spoken: int, settings: dict[str, Any]) -> None:
    words = {word: number for number, word in enumerate(["[UNK]", "Satz", "ü"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    loader = flac.loader(tokenizer=tokenizer, where=HAS_TEXT, **settings)
    assert check(flac, loader, tokenize=lambda text: tokenizer.encode(text).ids) == spoken


class LikeTransformers:
    """Called, it gives a dictionary; encode gives the numbers, special tokens included."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Give all that a model takes."""
        return {"input_ids": self.encode(text), "attention_mask": [1] * (len(text) + 1)}

    def encode(self, text: str) -> list[int]:
        """Give the numbers."""
        return [101, *characters(text)]


def test_an_object_is_asked_to_encode(flac: Packed, spoken: int) -> None:
    loader = flac.loader(tokenizer=LikeTransformers(), where=HAS_TEXT)
    assert check(flac, loader, tokenize=LikeTransformers().encode) == spoken


def test_a_text_without_tokens(flac: Packed) -> None:
    batch = next(iter(flac.loader(tokenizer=lambda text: [], where=HAS_TEXT)))
    assert batch.tokens is not None
    assert batch.tokens.shape == (len(batch), 0)


def test_an_utterance_without_text_is_named(flac: Packed) -> None:
    with pytest.raises(DataError, match=r"utterance '.*' at offset .*no transcript.*text_chars > 0"):
        list(flac.loader(tokenizer=characters))


def test_or_skipped(flac: Packed, spoken: int) -> None:
    loader = flac.loader(tokenizer=characters, on_error="skip")
    assert check(flac, (batch for batch in loader if not batch.filler)) == spoken
    assert loader.metrics()["skipped"] == len(flac.sources) - spoken


def test_no_tokenizer_no_tokens(flac: Packed) -> None:
    batch = next(iter(flac.loader()))
    assert batch.tokens is None
    assert batch.token_lengths is None


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (lambda text: text.split(), "expected whole numbers"),
        (lambda text: [[1, 2]], "expected whole numbers"),
        (lambda text: [0.5], "expected whole numbers"),
        (lambda text: {}[text], "tokenizer raised KeyError"),
    ],
)
def test_what_it_may_not_give(flac: Packed, tokenizer: Any, reason: str) -> None:
    with pytest.raises(UttershardError) as caught:
        list(flac.loader(tokenizer=tokenizer, where=HAS_TEXT))
    assert reason in str(caught.value)
    assert "at offset" in str(caught.value)


def test_settings_that_can_not_be(flac: Packed, tmp_path: Path) -> None:
    (tmp_path / "text.model").write_text("no model")
    for settings, message in (
        ({"tokenizer": 7}, "tokenizer=7"),
        ({"tokenizer": str(tmp_path / "none.model")}, "no such file"),
        ({"tokenizer": str(tmp_path / "text.model")}, "not a SentencePiece model"),
        ({"token_pad": 3}, "no meaning without tokenizer"),
        ({"tokenizer": characters, "token_pad": 0.5}, "token_pad=0.5"),
    ):
        with pytest.raises(ConfigError) as caught:
            flac.loader(**settings)
        assert message in str(caught.value)
