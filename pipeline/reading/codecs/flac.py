"""FLAC by miniaudio's dr_flac (1.65 times the speed of libsndfile), by soundfile where there is no miniaudio.

dr_flac leaves out a damaged frame without a word, so every count is checked. The samples are the same either way.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from . import native
from .base import (
    AudioError,
    AudioInfo,
    Codec,
    DType,
    Samples,
    Scratch,
    file_size,
    read_at,
    require_channels,
    require_count,
    require_samples,
    shaped,
    truncated,
)
from .flac_frames import (
    STREAMINFO_END,
    FrameHeader,
    StreamInfo,
    frame_headers_backwards,
    parse_stream_info,
    single_frame_file,
    with_total,
)
from .pcm import full_scale_of_integers
from .sniff import id3_end, id3_end_of_file

_COUNTING_BLOCK = 65_536
_MOST_BITS = 24


def _matches(head: memoryview) -> bool:
    # What has more than 24 bits is left to FFmpeg, which alone decodes it.
    return bytes(head[:4]) == b"fLaC" and (len(head) < STREAMINFO_END or parse_stream_info(head).bits <= _MOST_BITS)


def _dtype(bits: int) -> DType:
    return "int16" if bits <= 16 else "float32"


def _info(stream: StreamInfo, num_samples: int) -> AudioInfo:
    info = AudioInfo("flac", num_samples, stream.sample_rate, stream.channels, _dtype(stream.bits))
    return require_samples(info)


def _measure(data: memoryview) -> AudioInfo:
    data = data[id3_end(data) :]
    stream = parse_stream_info(data)
    head, tail = data[:STREAMINFO_END], data[STREAMINFO_END:][-stream.tail_bytes :]
    if stream.num_samples and _ends_with(tail, stream.num_samples, head, stream):
        return _info(stream, stream.num_samples)
    found = _count(data, stream)
    if stream.num_samples and found != stream.num_samples:
        raise truncated(stream.num_samples, found)
    # A frame that starts where the samples end, or soon after it, is one that did not decode.
    missing = range(found, found + 2 * stream.largest_block)
    if any(frame.first_sample in missing for frame in frame_headers_backwards(tail, stream)):
        raise AudioError(f"truncated: the last frame is damaged, {found} samples come before it")
    return _info(stream, found)


def _ends_with(tail: memoryview, num_samples: int, head: memoryview, stream: StreamInfo) -> bool:
    """Whether `tail` holds, whole, the frame that ends at sample `num_samples`."""
    ending = (frame for frame in frame_headers_backwards(tail, stream) if frame.end_sample == num_samples)
    return any(_is_whole(frame, head, tail, stream) for frame in ending)


def _is_whole(frame: FrameHeader, head: memoryview, data: memoryview, stream: StreamInfo) -> bool:
    alone = memoryview(single_frame_file(head, frame.block_size, data[frame.offset :]))
    return _decodable(alone, stream.channels) == frame.block_size


def _probe(file: BinaryIO) -> AudioInfo:
    start = id3_end_of_file(file)
    head = read_at(file, start, STREAMINFO_END)
    stream = parse_stream_info(head)
    tail_start = max(start + STREAMINFO_END, file_size(file) - stream.tail_bytes)
    tail = read_at(file, tail_start, stream.tail_bytes)
    if stream.num_samples and _ends_with(tail, stream.num_samples, head, stream):
        return _info(stream, stream.num_samples)
    file.seek(start)
    return _measure(memoryview(file.read()))


def _peek_dtype(data: memoryview) -> DType:
    return _dtype(parse_stream_info(data[id3_end(data) :]).bits)


def _full_scale(data: memoryview) -> float:
    # Fewer bits than 16 are the upper ones of the samples.
    return full_scale_of_integers(parse_stream_info(data[id3_end(data) :]).bits)


def _decode(data: memoryview, num_samples: int, channels: int, scratch: Scratch) -> Samples:
    data = data[id3_end(data) :]
    stream = parse_stream_info(data)
    require_channels(stream.channels, channels)
    wanted = num_samples * channels
    samples: NDArray[Any]
    dtype = _dtype(stream.bits)
    if scratch is not None and len(scratch) >= wanted and scratch.dtype in (dtype, np.float32):
        samples = scratch[:wanted]
    else:
        samples = np.empty(wanted, dtype)
    fill = _fill_by_soundfile if native.lib is None else _fill_by_miniaudio
    found, more = fill(data, num_samples, channels, samples)
    require_count(found, num_samples, more=more)
    return shaped(samples, channels)


def _count(data: memoryview, stream: StreamInfo) -> int:
    """Samples of each channel that a file holds, whatever its header says."""
    found = _decodable(data, stream.channels)
    if found or native.lib is not None:
        return found
    # libsndfile gives nothing of a file that it finds cut: the frames tell how far it goes.
    for last in frame_headers_backwards(data, stream):
        return last.end_sample if _is_whole(last, data[:STREAMINFO_END], data, stream) else last.first_sample
    return 0


def _decodable(data: memoryview, channels: int) -> int:
    """Samples of each channel that come of decoding; 0 if soundfile is at work and fails."""
    count = _count_by_soundfile if native.lib is None else _count_by_miniaudio
    return count(data, channels)


@contextmanager
def _miniaudio_stream(data: memoryview) -> Iterator[Any]:
    source = native.ffi.from_buffer(data)
    stream = native.lib.ma_dr_flac_open_memory(source, len(data), native.ffi.NULL)
    if not stream:
        raise AudioError("truncated or damaged: no FLAC frame found behind the header")
    try:
        yield stream
    finally:
        native.lib.ma_dr_flac_close(stream)


def _fill_by_miniaudio(data: memoryview, num_samples: int, channels: int, samples: NDArray[Any]) -> tuple[int, bool]:
    """Decode into `samples`; how many came, and whether more follow."""
    if samples.dtype == np.int16:
        read, c_type = native.lib.ma_dr_flac_read_pcm_frames_s16, "short[]"
    else:
        read, c_type = native.lib.ma_dr_flac_read_pcm_frames_f32, "float[]"
    with _miniaudio_stream(data) as stream:
        require_channels(stream.channels, channels)
        found = read(stream, num_samples, native.pointer(c_type, samples))
        spare = np.empty(channels, samples.dtype)
        more = found == num_samples and read(stream, 1, native.pointer(c_type, spare)) > 0
    return found, more


def _fill_by_soundfile(data: memoryview, num_samples: int, channels: int, samples: NDArray[Any]) -> tuple[int, bool]:
    """As `_fill_by_miniaudio`."""
    try:
        with _soundfile_stream(data) as stream:
            require_channels(stream.channels, channels)
            found = len(stream.read(num_samples, out=shaped(samples, channels)))
            more = len(stream.read(1, dtype=samples.dtype.name)) > 0
    except soundfile.LibsndfileError as error:
        raise AudioError(f"damaged FLAC: {error.error_string or 'a frame does not decode'}") from error
    return found, more


def _soundfile_stream(data: memoryview) -> Any:
    stream = parse_stream_info(data)
    if not stream.num_samples:
        # libsndfile reads a stream of unknown length, but fails at its end: so it is told where the last frame ends.
        last = next(frame_headers_backwards(data, stream), None)
        return soundfile.SoundFile(io.BytesIO(with_total(data, last.end_sample if last else 0)))
    return soundfile.SoundFile(io.BytesIO(data))


def _count_by_miniaudio(data: memoryview, channels: int) -> int:
    block = np.empty(_COUNTING_BLOCK * channels, np.int16)
    target = native.pointer("short[]", block)
    total = 0
    with _miniaudio_stream(data) as stream:
        require_channels(stream.channels, channels)
        while found := native.lib.ma_dr_flac_read_pcm_frames_s16(stream, _COUNTING_BLOCK, target):
            total += found
    return total


def _count_by_soundfile(data: memoryview, channels: int) -> int:
    total = 0
    try:
        with _soundfile_stream(data) as stream:
            require_channels(stream.channels, channels)
            while found := len(stream.read(_COUNTING_BLOCK, dtype="int16")):
                total += found
    except soundfile.LibsndfileError:
        return 0
    return total


CODEC = Codec(
    name="flac",
    extension="flac",
    endings=frozenset({".flac"}),
    matches=_matches,
    measure=_measure,
    probe=_probe,
    decode=_decode,
    peek_dtype=_peek_dtype,
    full_scale=_full_scale,
)
