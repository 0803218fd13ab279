"""Codecs: the samples of soundfile, every count checked, no cut file taken for a shorter one."""

import io
import struct
import threading
import wave

import numpy as np
import pytest
import soundfile
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.pipeline.reading.codecs import (
    AUDIO_EXTENSIONS,
    EXTENSIONS,
    AudioError,
    AudioInfo,
    decode,
    measure,
    native,
    peek_dtype,
    probe,
)
from uttershard.pipeline.reading.codecs.flac_frames import frame_headers_backwards, parse_stream_info
from uttershard.pipeline.reading.codecs.ogg_pages import pages, with_serial

ID3_TAG = b"ID3\x04\x00\x00\x00\x00\x01\x00" + bytes(128)
ID3V1_TAG = b"TAG" + b"a title".ljust(125, b"\0")

WAV_SUBTYPES = ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]
# (format, subtype) as soundfile has them, for each codec.
LOSSY = {"opus": ("OGG", "OPUS"), "vorbis": ("OGG", "VORBIS"), "mp3": ("MP3", "MPEG_LAYER_III")}


def tone(num_samples: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Speech-like float samples [n, channels]: a gliding tone with noise."""
    noise = np.random.default_rng(seed).normal(size=(num_samples, channels))
    glide = np.sin(np.cumsum(np.linspace(0.02, 0.3, num_samples)))[:, None]
    return (0.4 * glide + 0.05 * noise).clip(-1, 1)


def encoded(num_samples: int, form: str, subtype: str, channels: int = 1, rate: int = 16_000) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, tone(num_samples, channels), rate, format=form, subtype=subtype)
    return target.getvalue()


def of_codec(codec: str, num_samples: int = 20_000, channels: int = 1) -> bytes:
    form, subtype = LOSSY.get(codec, (codec.upper(), "PCM_16"))
    return encoded(num_samples, form, subtype, channels)


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def wav_file(*chunks: bytes, riff_bytes: int | None = None, riff: bytes = b"RIFF") -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return riff + struct.pack("<I", len(body) if riff_bytes is None else riff_bytes) + body


PCM16 = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16))
FOUR_SAMPLES = np.array([1, -2, 3, -32768], "<i2").tobytes()


def assert_equals_soundfile(data: bytes, info: AudioInfo) -> None:
    expected, rate = soundfile.read(io.BytesIO(data), dtype=info.dtype)
    samples = decode(info.codec, data, info.num_samples, info.channels)
    assert (samples.dtype, rate) == (np.dtype(info.dtype), info.sample_rate)
    np.testing.assert_array_equal(samples, expected)


@pytest.fixture(params=["miniaudio", "soundfile"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of decoding FLAC and MP3: platforms without a wheel of miniaudio have only the second."""
    if request.param == "soundfile":
        monkeypatch.setattr(native, "lib", None)
    return str(request.param)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("form", ["WAV", "WAVEX", "RF64"])
@pytest.mark.parametrize("subtype", WAV_SUBTYPES)
def test_wav_is_bit_equal_to_soundfile(form: str, subtype: str, channels: int) -> None:
    data = encoded(1001, form, subtype, channels)
    info = measure(data)
    assert info == AudioInfo("wav", 1001, 16_000, channels, "int16" if subtype == "PCM_16" else "float32")
    assert probe(io.BytesIO(data)) == info
    assert_equals_soundfile(data, info)


@pytest.mark.parametrize("subtype", ["ULAW", "ALAW"])
def test_every_companded_code_is_bit_equal_to_soundfile(subtype: str) -> None:
    data = bytearray(encoded(256, "WAV", subtype))
    data[-256:] = bytes(range(256))
    assert_equals_soundfile(bytes(data), measure(bytes(data)))


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16", "PCM_24"])
def test_flac_is_bit_equal_to_soundfile(subtype: str, channels: int, library: str) -> None:
    data = encoded(10_001, "FLAC", subtype, channels, rate=22_050)
    info = measure(data)
    assert info == AudioInfo("flac", 10_001, 22_050, channels, "float32" if subtype == "PCM_24" else "int16")
    assert probe(io.BytesIO(data)) == info
    assert_equals_soundfile(data, info)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("num_samples", [1, 1000, 4096, 50_000])
@pytest.mark.parametrize("codec", ["opus", "vorbis"])
def test_ogg_is_equal_to_soundfile(codec: str, num_samples: int, channels: int) -> None:
    data = of_codec(codec, num_samples, channels)
    info = measure(data)
    assert info == AudioInfo(codec, num_samples, 16_000, channels, "float32")
    assert probe(io.BytesIO(data)) == info
    assert_equals_soundfile(data, info)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100])
def test_mp3_is_close_to_soundfile(rate: int, channels: int, library: str) -> None:
    data = encoded(30_000, *LOSSY["mp3"], channels, rate)
    info = measure(data)
    assert info == AudioInfo("mp3", 30_000, rate, channels, "float32")
    assert probe(io.BytesIO(data)) == info
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    samples = decode("mp3", data, info.num_samples, channels)
    np.testing.assert_allclose(samples, expected, rtol=0, atol=2 / 32768)


@pytest.mark.parametrize("codec", EXTENSIONS)
def test_any_bytes_like_object_will_do(codec: str) -> None:
    data = of_codec(codec)
    info = measure(data)
    assert info.codec == codec
    views: list[bytearray | memoryview] = [bytearray(data), memoryview(data), memoryview(b"x" + data)[1:]]
    for view in views:
        assert measure(view) == info
        assert peek_dtype(codec, view) == info.dtype
        np.testing.assert_array_equal(
            decode(codec, view, info.num_samples, 1), decode(codec, data, info.num_samples, 1)
        )


def test_pcm16_wav_is_not_copied() -> None:
    data = bytearray(of_codec("wav"))
    samples = decode("wav", data, 20_000, 1)
    assert np.shares_memory(samples, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("channels", [1, 2])
def test_flac_is_decoded_into_the_scratch(channels: int, library: str) -> None:
    data = of_codec("flac", channels=channels)
    scratch = np.empty(60_000, np.int16)
    samples = decode("flac", data, 20_000, channels, scratch)
    assert np.shares_memory(samples, scratch)
    np.testing.assert_array_equal(samples, decode("flac", data, 20_000, channels))
    too_short = np.zeros(100, np.int16)
    assert not np.shares_memory(decode("flac", data, 20_000, channels, too_short), too_short)


@pytest.mark.parametrize("channels", [1, 2])
def test_flac_decoded_to_float32_is_its_int16_scaled(channels: int, library: str) -> None:
    data = of_codec("flac", channels=channels)
    scratch = np.empty(60_000, np.float32)
    samples = decode("flac", data, 20_000, channels, scratch)
    assert np.shares_memory(samples, scratch)
    assert np.array_equal(samples, decode("flac", data, 20_000, channels) / np.float32(32768))


def test_the_type_is_known_from_the_first_bytes() -> None:
    assert peek_dtype("wav", of_codec("wav")[:64]) == "int16"
    assert peek_dtype("wav", encoded(1000, "WAV", "PCM_24")[:64]) == "float32"
    assert peek_dtype("flac", of_codec("flac")[:64]) == "int16"
    assert peek_dtype("flac", encoded(1000, "FLAC", "PCM_24")[:64]) == "float32"


def test_extensions() -> None:
    assert EXTENSIONS == {"wav": "wav", "flac": "flac", "opus": "opus", "vorbis": "ogg", "mp3": "mp3"}
    assert all(f".{ending}" in AUDIO_EXTENSIONS for ending in EXTENSIONS.values())


def test_unknown_codec() -> None:
    with pytest.raises(ConfigError, match=r"no codec 'dsd'.*wav, flac, opus, vorbis, .*mp3"):
        decode("dsd", b"", 1, 1)


@pytest.mark.parametrize("codec", EXTENSIONS)
def test_threads_decode_side_by_side(codec: str) -> None:
    data = of_codec(codec)
    expected = decode(codec, data, 20_000, 1).copy()
    equal: list[bool] = []

    def work() -> None:
        scratch = np.empty(20_000, np.int16)
        equal.extend(np.array_equal(decode(codec, data, 20_000, 1, scratch), expected) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [True] * 20


@pytest.mark.parametrize("codec", ["flac", "mp3"])
def test_audio_behind_id3_tags(codec: str, library: str) -> None:
    plain = of_codec(codec)
    tagged = ID3_TAG + ID3_TAG + plain + ID3V1_TAG
    assert measure(tagged) == probe(io.BytesIO(tagged)) == measure(plain)
    assert peek_dtype(codec, tagged) == peek_dtype(codec, plain)
    np.testing.assert_array_equal(decode(codec, tagged, 20_000, 1), decode(codec, plain, 20_000, 1))


@pytest.mark.parametrize(
    "data",
    [
        b"<html><body>404 Not Found</body></html>",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\xff\xfb\x90\x64" + bytes(2000),  # an MP3 header that no second one follows
        b"RIFF\x24\0\0\0AVI LIST" + bytes(100),
        b"\xff" * 5000,
        bytes(5000),
        b"\n",
    ],
)
def test_what_is_no_audio_is_refused(data: bytes) -> None:
    for read in (measure, lambda data: probe(io.BytesIO(data))):
        with pytest.raises(AudioError, match=r"^not audio: starts with b'"):
            read(data)


def test_empty_file() -> None:
    with pytest.raises(AudioError, match=r"^empty file$"):
        measure(b"")
    with pytest.raises(AudioError, match=r"^empty file$"):
        probe(io.BytesIO())
    with pytest.raises(AudioError, match="truncated: the file ends within its ID3 tag"):
        measure(ID3_TAG[:100])


def test_no_samples(library: str) -> None:
    flac = memoryview(WHOLE["flac"])
    *_, first = frame_headers_backwards(flac, parse_stream_info(flac))
    for empty in (of_codec("wav", num_samples=0), without_total(bytes(flac[: first.offset]))):
        for read in (measure, lambda data: probe(io.BytesIO(data))):
            with pytest.raises(AudioError, match=r"no samples|no FLAC frame"):
                read(empty)


def test_an_audio_error_is_a_data_error() -> None:
    assert issubclass(AudioError, DataError)


MAGIC = [b"", b"RIFF\0\0\0\0WAVEfmt ", b"fLaC\0\0\0\x22", b"OggS\0\2", b"ID3\4\0\0", b"\xff\xfb"]


@settings(max_examples=300, deadline=None)
@given(start=st.sampled_from(MAGIC), rest=st.binary(max_size=200))
def test_noise_is_refused_as_no_audio(start: bytes, rest: bytes) -> None:
    for read in (measure, lambda data: probe(io.BytesIO(data))):
        with pytest.raises(AudioError):
            read(start + rest)


@pytest.mark.parametrize(
    "data",
    [
        wav_file(PCM16, chunk(b"data", FOUR_SAMPLES)),
        wav_file(chunk(b"LIST", b"INFOodd"), PCM16, chunk(b"data", FOUR_SAMPLES), chunk(b"LIST", b"INFO")),
        wav_file(chunk(b"JUNK", bytes(10_001)), PCM16, chunk(b"bext", bytes(5)), chunk(b"data", FOUR_SAMPLES)),
        wav_file(b"LIST\5\0\0\0INFOx", PCM16, chunk(b"data", FOUR_SAMPLES)),  # the padding byte forgotten
        wav_file(PCM16, chunk(b"data", FOUR_SAMPLES), riff_bytes=7),
    ],
    ids=["plain", "lists around", "long header", "no padding", "wrong total"],
)
def test_wav_chunks_in_any_arrangement(data: bytes) -> None:
    info = measure(data)
    assert info == AudioInfo("wav", 4, 16_000, 1, "int16")
    assert probe(io.BytesIO(data)) == info
    assert decode("wav", data, 4, 1).tobytes() == FOUR_SAMPLES


@pytest.mark.parametrize("claimed", [0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("riff_bytes", [0, 36, 0xFFFFFFFF])
def test_a_streamed_wav_is_measured_by_its_bytes(claimed: int, riff_bytes: int) -> None:
    data = wav_file(PCM16, b"data" + struct.pack("<I", claimed) + FOUR_SAMPLES + b"\1", riff_bytes=riff_bytes)
    assert measure(data).num_samples == probe(io.BytesIO(data)).num_samples == 4
    assert decode("wav", data, 4, 1).tobytes() == FOUR_SAMPLES


def test_a_finished_wav_without_samples_is_not_a_streamed_one() -> None:
    data = wav_file(PCM16, chunk(b"data", b""), chunk(b"LIST", b"INFO"))
    with pytest.raises(AudioError, match="no samples"):
        measure(data)


def test_rf64_takes_its_sizes_from_ds64() -> None:
    def rf64(data_bytes: int) -> bytes:
        sizes = chunk(b"ds64", struct.pack("<QQQI", 100, data_bytes, 4, 0))
        return wav_file(sizes, PCM16, b"data\xff\xff\xff\xff" + FOUR_SAMPLES + b"LIST", riff=b"RF64")

    assert measure(rf64(8)).num_samples == 4
    with pytest.raises(AudioError, match="truncated: the header promises 5000000000 samples, the file holds 6"):
        measure(rf64(10_000_000_000))


def test_a_wav_of_the_standard_library_is_read() -> None:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(FOUR_SAMPLES)
    assert measure(target.getvalue()) == AudioInfo("wav", 2, 8000, 2, "int16")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            wav_file(PCM16, b"data\x64\0\0\0" + FOUR_SAMPLES),
            "truncated: the header promises 50 samples, the file holds 4",
        ),
        (wav_file(chunk(b"data", FOUR_SAMPLES), PCM16), "no format chunk before its data"),
        (wav_file(PCM16), "truncated: the WAV ends before its data chunk"),
        (wav_file(chunk(b"fmt ", b"short"), chunk(b"data", b"")), "format chunk is cut short"),
        (wav_file(chunk(b"fmt ", struct.pack("<HHIIHH", 1, 0, 8000, 0, 0, 16))), "0 channels at 8000 Hz"),
    ],
)
def test_a_bad_wav_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    for read in (measure, lambda data: probe(io.BytesIO(data))):
        with pytest.raises(AudioError, match=reason):
            read(data)


WHOLE = {
    "wav": encoded(3000, "WAV", "PCM_16"),
    "wav 24 bits, 2 channels": encoded(3000, "WAVEX", "PCM_24", 2),
    "flac": encoded(20_000, "FLAC", "PCM_16"),
    "flac 24 bits, 2 channels": encoded(9_000, "FLAC", "PCM_24", 2),
    "opus": of_codec("opus"),
    "vorbis": of_codec("vorbis"),
    "mp3": of_codec("mp3"),
}


ENDS_OF_PAGES = {name: [page.end for page in pages(memoryview(WHOLE[name]))] for name in ("opus", "vorbis")}


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=150, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(name: str, share: float) -> None:
    whole = WHOLE[name]
    cut = whole[: int(share * len(whole))]
    # A recording that was stopped ends with a whole page of Ogg: nothing tells one that was cut there from it.
    assume(len(cut) not in ENDS_OF_PAGES.get(name, ()))
    for read in (measure, lambda data: probe(io.BytesIO(data))):
        with pytest.raises(AudioError):
            read(cut)


@pytest.mark.parametrize("name", ["wav", "flac", "opus", "vorbis", "mp3"])
def test_a_file_short_of_its_last_bytes_is_refused(name: str, library: str) -> None:
    whole = WHOLE[name]
    for missing in range(1, 60):
        with pytest.raises(AudioError, match="truncated"):
            measure(whole[:-missing])


def test_a_cut_flac_is_refused_at_every_frame_boundary(library: str) -> None:
    whole = memoryview(WHOLE["flac"])
    starts = [frame.offset for frame in frame_headers_backwards(whole, parse_stream_info(whole))]
    assert len(starts) == 5
    for start in starts[:-1]:
        with pytest.raises(AudioError, match=r"promises 20000 samples, the file holds (4096|8192|12288|16384)"):
            measure(whole[:start])


def without_total(flac: bytes) -> bytes:
    """As an encoder leaves it that writes into a pipe."""
    head = bytearray(flac)
    head[21] &= 0xF0
    head[22:26] = bytes(4)
    return bytes(head)


def test_a_flac_that_does_not_say_its_length_is_counted(library: str) -> None:
    data = without_total(WHOLE["flac"])
    info = measure(data)
    assert info == probe(io.BytesIO(data)) == AudioInfo("flac", 20_000, 16_000, 1, "int16")
    np.testing.assert_array_equal(decode("flac", data, 20_000, 1), decode("flac", WHOLE["flac"], 20_000, 1))


def test_a_cut_flac_that_does_not_say_its_length_is_refused_within_a_frame(library: str) -> None:
    data = without_total(WHOLE["flac"])
    for missing in (1, 100, 3000):
        with pytest.raises(AudioError, match="truncated: the last frame is damaged, 16384 samples come before it"):
            measure(data[:-missing])


@pytest.mark.parametrize("codec", EXTENSIONS)
@pytest.mark.parametrize("wrong", [-1, 1, 5000])
def test_another_number_of_samples_than_promised_is_an_error(codec: str, wrong: int, library: str) -> None:
    wanted = 20_000 + wrong
    with pytest.raises(AudioError, match=str(wanted)):
        decode(codec, of_codec(codec), wanted, 1, np.empty(50_000, np.int16))


@pytest.mark.parametrize("codec", EXTENSIONS)
@pytest.mark.parametrize("have", [1, 2])
def test_another_number_of_channels_than_promised_is_an_error(codec: str, have: int, library: str) -> None:
    wanted = 3 - have
    with pytest.raises(AudioError, match=f"holds {have} channels where {wanted} were promised"):
        decode(codec, of_codec(codec, channels=have), 20_000, wanted)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_flac_never_decodes_to_other_samples(data: st.DataObject) -> None:
    whole = WHOLE["flac"]
    position = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = bytearray(whole)
    damaged[position] ^= 1 << bit
    try:
        samples = decode("flac", damaged, 20_000, 1)
    except AudioError:
        return
    np.testing.assert_array_equal(samples, decode("flac", whole, 20_000, 1))


@pytest.mark.parametrize("codec", ["opus", "vorbis"])
def test_a_damaged_ogg_page_is_refused(codec: str) -> None:
    damaged = bytearray(WHOLE[codec])
    damaged[-50] ^= 0x10
    with pytest.raises(AudioError, match="damaged: the Ogg page at byte"):
        measure(damaged)
    with pytest.raises(AudioError, match="damaged: the Ogg page at byte"):
        decode(codec, damaged, 20_000, 1)


@pytest.mark.parametrize("codec", ["opus", "vorbis"])
def test_chained_ogg_is_decoded_link_by_link(codec: str) -> None:
    data = WHOLE[codec] * 3
    info = measure(data)
    assert info.num_samples == 60_000
    expected = np.tile(decode(codec, WHOLE[codec], 20_000, 1), 3)
    np.testing.assert_array_equal(decode(codec, data, 60_000, 1), expected)
    with pytest.raises(AudioError, match="40000 were promised"):
        decode(codec, data, 40_000, 1)
    with pytest.raises(AudioError, match="changes from 1 channels"):
        measure(WHOLE[codec] + of_codec(codec, channels=2))


@pytest.mark.parametrize("codec", ["opus", "vorbis"])
def test_ogg_without_its_end_mark_is_counted(codec: str) -> None:
    unmarked = without_end_mark(WHOLE[codec])
    info = measure(unmarked)
    assert info == probe(io.BytesIO(unmarked))
    assert info.num_samples >= 20_000
    assert len(decode(codec, unmarked, info.num_samples, 1)) == info.num_samples
    with pytest.raises(AudioError, match="truncated"):
        measure(unmarked[:-10])


def without_end_mark(data: bytes) -> bytes:
    """As of a recorder that was stopped: the last page is like any other."""
    last = data.rindex(b"OggS")
    page = bytearray(data[last:])
    page[5] &= ~0x04
    return with_serial(data[:last] + bytes(page), 7)


def without_info_frame(mp3: bytes) -> bytes:
    """As of an encoder that writes no count of frames; its frame is silence then."""
    return mp3.replace(b"Xing", bytes(4)).replace(b"Info", bytes(4))


def test_an_mp3_that_does_not_say_its_length_is_counted() -> None:
    data = without_info_frame(WHOLE["mp3"])
    info = measure(data)
    assert info == probe(io.BytesIO(data))
    assert info.num_samples % 576 == 0
    assert info.num_samples > 20_000
    assert len(decode("mp3", data, info.num_samples, 1)) == info.num_samples


def test_an_mp3_that_does_not_say_its_length_needs_miniaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "lib", None)
    with pytest.raises(AudioError, match="needs the package miniaudio"):
        measure(without_info_frame(WHOLE["mp3"]))


def test_joined_mp3_files_are_counted_as_they_decode(library: str) -> None:
    data = WHOLE["mp3"] * 2
    if native.lib is None:
        with pytest.raises(AudioError, match="needs the package miniaudio"):
            measure(data)
        return
    info = measure(data)
    assert info == probe(io.BytesIO(data))
    assert info.num_samples > 40_000
    assert len(decode("mp3", data, info.num_samples, 1)) == info.num_samples


def test_a_long_header_costs_no_long_read() -> None:
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.read_bytes += len(data)
            return data

    for name in ("wav", "flac", "mp3"):
        file = Counting(of_codec(name, num_samples=400_000))
        assert probe(file).num_samples == 400_000
        assert file.read_bytes < 60_000, name
