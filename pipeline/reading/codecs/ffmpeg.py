"""M4A, AAC, WebM and whatever else FFmpeg reads, by PyAV, which comes with the extra `av`.

What such a file says of its length is wrong as a rule (encoders pad, cut and estimate): it is decoded to be measured.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .base import (
    AudioError,
    AudioInfo,
    Codec,
    Depth,
    DType,
    Exact,
    Samples,
    Scratch,
    require_channels,
    require_count,
    require_samples,
)
from .pcm import from_integers

av: Any
try:
    import av
except ImportError:
    av = None

_SLACK_SECONDS = 0.2
"""A container's own duration may be this much more than what decodes: rounding, and padding of encoders."""

_MAGICS = (
    (4, b"ftyp"),  # MP4, M4A, 3GP
    (0, b"\x1aE\xdf\xa3"),  # Matroska, WebM
    (0, b"\x30\x26\xb2\x75"),  # ASF, WMA
    (0, b"#!AMR"),
    (0, b"caff"),
    (0, b".snd"),
    (0, b"wvpk"),
    (0, b"MAC "),
    (0, b"TTA1"),
    (0, b"FLV"),
    (0, b"riff.\x91\xcf\x11"),  # W64
    (0, b"Creative Voice File"),
    (8, b"WAVE"),  # compressed, and of FLAC what has more than 24 bits: what wav and flac do not take
    (0, b"fLaC"),
    (0, b"OggS"),  # with neither Opus nor Vorbis in it, which come before
)
_INT16 = frozenset({"s16", "s16p"})
_INT32 = frozenset({"s32", "s32p"})
_UINT8 = frozenset({"u8", "u8p"})
_DEPTHS: dict[str, Depth] = {
    "s32": "PCM_32",
    "s32p": "PCM_32",
    "flt": "FLOAT",
    "fltp": "FLOAT",
    "dbl": "DOUBLE",
    "dblp": "DOUBLE",
}
"""Of the sample formats of lossless codecs; what they decode to 16 bits or fewer has 16."""


def _matches(head: memoryview) -> bool:
    if any(bytes(head[at : at + len(magic)]) == magic for at, magic in _MAGICS):
        return True
    # ADTS: twelve ones, and layer 0, which MPEG audio does not have; and MPEG's layer II.
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 in (0xF0, 0xF4)


@contextmanager
def _open(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """The container and its first audio stream."""
    if av is None:
        raise AudioError("decoding it needs PyAV: pip install 'uttershard[av]'")
    try:
        with av.open(file) as container:
            if not container.streams.audio:
                raise AudioError("not audio: FFmpeg finds no audio stream in it")
            stream = container.streams.audio[0]
            stream.codec_context.options = {"err_detect": "explode"}
            yield container, stream
    except (av.error.FFmpegError, ValueError, EOFError) as error:
        raise AudioError(f"damaged, or not audio that FFmpeg reads: {error}") from error


def _pieces(container: Any, stream: Any, *, exact: bool = False) -> Iterator[NDArray[Any]]:
    """Samples as they come, [n, channels], int16 or float32; if exact, int32 and float64 where the file has them."""
    kind: tuple[str, int, int] | None = None
    for frame in container.decode(stream):
        found = (frame.format.name, frame.layout.nb_channels, frame.sample_rate)
        if kind is not None and found != kind:
            raise AudioError(f"changes from {kind} to {found} (sample format, channels, rate) in the middle")
        kind = found
        samples = frame.to_ndarray()
        samples = samples.T if frame.format.is_planar else samples.reshape(-1, found[1])
        yield samples if exact and found[0] in _DEPTHS else _converted(samples, found[0])


def _converted(samples: NDArray[Any], name: str) -> NDArray[Any]:
    if name in _INT16:
        return samples
    if name in _INT32:
        return samples.astype(np.float32) * np.float32(2**-31)
    if name in _UINT8:
        return from_integers(np.ascontiguousarray(samples) ^ np.uint8(0x80), 1, big_endian=False)
    if samples.dtype.kind != "f":
        raise AudioError(f"samples of {samples.dtype} are not supported")
    return samples.astype(np.float32, copy=False)


def _probe(file: BinaryIO) -> AudioInfo:
    file.seek(0)
    with _open(file) as (container, stream):
        stated = stream.duration and float(stream.duration * stream.time_base)
        count, channels, dtype = 0, stream.codec_context.layout.nb_channels, "float32"
        for piece in _pieces(container, stream):
            count += len(piece)
            channels, dtype = piece.shape[1], str(piece.dtype)
        rate = int(stream.codec_context.sample_rate)
    if stated and count < (stated - _SLACK_SECONDS) * rate:
        raise AudioError(f"truncated: the header promises {stated:.2f} s, the file holds {count / rate:.2f} s")
    kind: DType = "int16" if dtype == "int16" else "float32"
    return require_samples(AudioInfo("ffmpeg", count, rate, channels, kind))


def _measure(data: memoryview) -> AudioInfo:
    return _probe(io.BytesIO(data))


def _decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
    with _open(io.BytesIO(data)) as opened:
        whole = np.concatenate(list(_pieces(*opened)))
    require_channels(whole.shape[1], channels)
    require_count(len(whole), num_samples)
    return whole[:, 0] if channels == 1 else whole


def _cut(file: BinaryIO, first: int, last: int) -> Exact:
    """Decoded from the start, since seeking lands where the container likes; no more is kept than asked for."""
    file.seek(0)
    kept, position = [], 0
    with _open(file) as opened:
        for piece in _pieces(*opened, exact=True):
            kept.append(piece[max(0, first - position) : max(0, last - position)])
            position += len(piece)
            if position >= last:
                break
    whole = np.concatenate(kept)
    require_count(len(whole), last - first)
    return whole[:, 0] if whole.shape[1] == 1 else whole


def _blocks(file: BinaryIO) -> Iterator[Exact]:
    file.seek(0)
    with _open(file) as opened:
        for piece in _pieces(*opened, exact=True):
            yield piece[:, 0] if piece.shape[1] == 1 else piece


def _peek_dtype(data: memoryview) -> DType:
    with _open(io.BytesIO(data)) as opened:
        first = next(_pieces(*opened), None)
    return "int16" if first is not None and first.dtype == np.int16 else "float32"


def _depth(file: BinaryIO) -> Depth:
    file.seek(0)
    with _open(file) as (_, stream):
        context = stream.codec_context
        return _DEPTHS.get(context.format.name, "PCM_16") if context.codec.lossless else "PCM_16"


CODEC = Codec(
    name="ffmpeg",
    extension="mka",
    endings=frozenset({".m4a", ".aac", ".webm", ".mka", ".wma", ".amr", ".caf", ".au", ".wv", ".ape"}),
    matches=_matches,
    measure=_measure,
    probe=_probe,
    decode=_decode,
    peek_dtype=_peek_dtype,
    packable=False,
    cut=_cut,
    blocks=_blocks,
    depth=_depth,
)
