"""Files as bug reports of this field have them: what is odd and right is read, what is wrong is refused by name."""

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import noise, write_lines
from uttershard.pipeline.reading.codecs import AudioError, decode, measure, probe
from uttershard.writers.audio import fetch
from uttershard.writers.ids import refuse_bad_ids
from uttershard.writers.listing import Listing
from uttershard.writers.settings import PackSettings
from uttershard.writers.sources import open_source

SAMPLES = noise(1.0)[:-1]  # an odd number
PCM_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def encoded(file_format: str, subtype: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SAMPLES, 16_000, format=file_format, subtype=subtype)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def wave_format(tag: int, width: int, bits: int) -> bytes:
    return struct.pack("<HHIIHH", tag, 1, 16_000, 16_000 * width, width, bits)


def extensible(width: int, valid_bits: int) -> bytes:
    tail = struct.pack("<HHIH", 22, valid_bits, 4, 1) + PCM_GUID_TAIL
    return wave_format(0xFFFE, width, 8 * width) + tail


PLAIN = wave_format(1, 2, 16)
WIDE = (SAMPLES.astype("<i4") << 16).tobytes()
WAV, FLAC, MP3 = encoded("WAV", "PCM_16"), encoded("FLAC", "PCM_16"), encoded("MP3", "MPEG_LAYER_III")
ID3 = b"ID3\x04\0\0\0\0\x01\0" + bytes(128)
COVER = b"ID3\x04\0\0\x01\x40\0\0" + np.random.default_rng(0).bytes(3 << 20)
LIST = chunk(b"LIST", b"INFOISFT\x05\0\0\0abcd\0")

APE_ITEM = struct.pack("<II", 4, 0) + b"Title\0abcd"


def ape(flags: int) -> bytes:
    return b"APETAGEX" + struct.pack("<IIII", 2000, len(APE_ITEM) + 32, 1, flags) + bytes(8)


READ = {
    "LIST before fmt": riff(LIST, chunk(b"fmt ", PLAIN), chunk(b"data", SAMPLES.tobytes())),
    "fmt of 18 bytes": riff(chunk(b"fmt ", PLAIN + b"\0\0"), chunk(b"data", SAMPLES.tobytes())),
    "12 bits in 16": riff(chunk(b"fmt ", wave_format(1, 2, 12)), chunk(b"data", SAMPLES.tobytes())),
    "extensible, 24 bits in 32": riff(chunk(b"fmt ", extensible(4, 24)), chunk(b"data", WIDE)),
    "data size with a byte that is not there": WAV[:40] + struct.pack("<I", len(WAV) - 43) + WAV[44:],
    "RIFF size 0": WAV[:4] + bytes(4) + WAV[8:],
    "streamed, sizes 0": WAV[:4] + bytes(4) + WAV[8:40] + bytes(4) + WAV[44:],
    "streamed, sizes -1": WAV[:4] + b"\xff" * 4 + WAV[8:40] + b"\xff" * 4 + WAV[44:],
    "junk behind": WAV + b"junk" * 10,
    "odd LIST behind, not padded": WAV + b"LIST\x05\0\0\0abcde",
    "ID3 before WAV": ID3 + WAV,
    "ID3 before FLAC": ID3 + FLAC,
    "ID3v1 behind FLAC": FLAC + b"TAG" + b" " * 125,
    "FLAC without its length": FLAC[:21] + bytes([FLAC[21] & 0xF0]) + bytes(4) + FLAC[26:],
    "a cover of megabytes before MP3": COVER + MP3,
    "APEv2 behind MP3": MP3 + ape(0xA0000000) + APE_ITEM + ape(0x80000000),
    "APEv2 without a header and ID3v1 behind MP3": MP3 + APE_ITEM + ape(0) + b"TAG" + b" " * 125,
    "ID3v1 behind MP3": MP3 + b"TAG" + b" " * 125,
}


@pytest.mark.parametrize("name", READ)
def test_odd_audio_is_read_whole_and_in_parts(tmp_path: Path, name: str) -> None:
    data = READ[name]
    path = tmp_path / "odd"
    path.write_bytes(data)
    info = measure(data)
    assert info.num_samples == len(SAMPLES)
    with path.open("rb") as file:
        assert probe(file) == info
    assert fetch(str(path), None, None, PackSettings()).data == data
    cut = fetch(str(path), 0.25, 0.75, PackSettings())
    if "MP3" not in name:
        whole = decode(info.codec, data, info.num_samples, info.channels)
        found = decode(cut.info.codec, cut.data, cut.info.num_samples, cut.info.channels)
        np.testing.assert_array_equal(found, whole[4000:12_000])
        np.testing.assert_allclose(whole, SAMPLES / 32768 if whole.dtype == np.float32 else SAMPLES, atol=1e-7)
    assert cut.info.num_samples == 8000


def test_a_padding_byte_that_was_counted_is_no_sample() -> None:
    data = bytes(range(1, 100))
    wav = riff(chunk(b"fmt ", wave_format(1, 1, 8)), b"data" + struct.pack("<I", len(data) + 1) + data)
    assert measure(wav).num_samples == len(data)


@pytest.mark.parametrize("damaged", [MP3[100:], bytes(500) + MP3, MP3[:10] + b"\xaa" * 60 + MP3[70:]])
def test_an_mp3_whose_first_frame_is_broken_is_what_decodes(damaged: bytes) -> None:
    info = measure(damaged)
    assert info.num_samples >= len(SAMPLES)
    assert len(decode(info.codec, damaged, info.num_samples, info.channels)) == info.num_samples


@pytest.mark.parametrize("cut", [WAV[:-1], WAV[:-2], FLAC[:-1], MP3[:-1], ID3 + WAV[:-2]])
def test_what_is_cut_is_refused(cut: bytes) -> None:
    with pytest.raises(AudioError, match="truncated"):
        measure(cut)


def listed(path: Path, source: str | None = None) -> Listing:
    return refuse_bad_ids(open_source(str(path), source, {}, allow_pipes=False).list_utterances())


def write_tar(path: Path, *members: tarfile.TarInfo, file_format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=file_format) as tar:
        for member in members:
            data = WAV if member.name.endswith(".wav") else b"text"
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, **pax: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.pax_headers = kind, pax
    return info


def test_odd_tars(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "plain.tar", member("./a.wav"), member("./a.txt"), file_format=tarfile.USTAR_FORMAT)
    pax = write_tar(tmp_path / "pax.tar", member("a.wav", mtime="1.7e9"), member("a.txt", mtime="1700000000.123"))
    for path in (plain, pax):
        listing = listed(path, "webdataset")
        assert listing.utterances.select(["key", "text"]).to_pylist() == [{"key": "a", "text": "text"}]
        assert listing.refused == []
    gnu = write_tar(
        tmp_path / "gnu.tar",
        member("volume", b"V"),
        member("folder/", b"D"),
        member("s.wav", b"S"),
        member("a.wav"),
        file_format=tarfile.GNU_FORMAT,
    )
    listing = listed(gnu, "webdataset")
    assert listing.utterances["key"].to_pylist() == ["a"]
    assert [(key, reason) for key, _, reason in listing.refused] == [
        ("s", "the member 's.wav' is a link or no file (type 'S')")
    ]


def test_odd_manifests(tmp_path: Path) -> None:
    (tmp_path / "one.wav").write_bytes(WAV)
    one = b'{"audio_filepath": "one.wav"'
    path = write_lines(
        tmp_path / "m.jsonl",
        b"\xef\xbb\xbf" + one + b', "id": "a"}\r',
        b"\r",
        one + b', "id": "x", "snr": Infinity}\r',
        one + b', "id": "y", "duration": 1' + b"0" * 400 + b"}",
        one + b', "id": "z", "duration": "1.5"}',
        one + b', "id": "n\\u0000"}',
        one + b', "id": "b ", "text": "\\ud83d\\ude00"},',
        one + b', "id": "b ", "text": "\\ud83d\\ude00"}',
    )
    listing = listed(path)
    assert listing.utterances.select(["key", "text"]).to_pylist() == [
        {"key": "a", "text": None},
        {"key": "b ", "text": "😀"},
    ]
    assert sorted(source for _, source, _ in listing.refused) == [f"m.jsonl:{line}" for line in range(3, 8)]


def test_one_bad_line_changes_nothing_for_the_others(tmp_path: Path) -> None:
    (tmp_path / "one.wav").write_bytes(WAV)
    records = [
        {"audio_filepath": "one.wav", "id": f"u{number}", "n": number, "text": "é", "offset": 0.0, "duration": 0.5}
        for number in range(100)
    ]
    good = write_lines(tmp_path / "good.jsonl", *(json.dumps(record, ensure_ascii=False) for record in records))
    bad = write_lines(tmp_path / "bad.jsonl", *good.read_text("utf-8").splitlines(), "{")
    expected = listed(good).utterances.drop_columns(["origin"])
    assert len(expected) == 100
    assert listed(bad).utterances.drop_columns(["origin"]).to_pylist() == expected.to_pylist()
    assert [source for _, source, _ in listed(bad).refused] == ["bad.jsonl:101"]


def test_kaldi_with_odd_blanks_and_absolute_columns(tmp_path: Path) -> None:
    (tmp_path / "one.wav").write_bytes(WAV)
    wav = f"{tmp_path}/one.wav"
    write_lines(tmp_path / "wav.scp", f"a\t{wav} \r", f"b\u00a0c {wav}", f"two {wav} {wav}")
    write_lines(tmp_path / "text", "a \t x\ty ", "b\u00a0c \u00a0hi\u200b", b"two \xff")
    listing = listed(tmp_path)
    assert listing.utterances.select(["key", "text"]).to_pylist() == [
        {"key": "a", "text": "x\ty"},
        {"key": "b\u00a0c", "text": "\u00a0hi\u200b"},
    ]
    assert [(key, source) for key, source, _ in listing.refused] == [("two", "text:3")]
    (tmp_path / "text").unlink()
    assert listed(tmp_path).utterances["uri"][2].as_py() == f'join:["{wav}","{wav}"]'


def test_common_voice_takes_quotes_for_text(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "one.mp3").write_bytes(MP3)
    write_lines(tmp_path / "validated.tsv", "client_id\tpath\tsentence\tage\r", 'c\tone.mp3\t"He said ""x\t\r')
    assert listed(tmp_path).utterances["text"].to_pylist() == ['"He said ""x']


def test_a_supervision_longer_than_its_cut_by_a_rounding_error(tmp_path: Path) -> None:
    (tmp_path / "one.wav").write_bytes(WAV)
    seconds = len(SAMPLES) / 16_000
    source = {"type": "file", "channels": [0], "source": f"{tmp_path}/one.wav"}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16_000, "num_samples": len(SAMPLES)}
    supervision = {"id": "s", "recording_id": "r", "start": -1e-5, "duration": seconds + 2e-5, "text": "t"}
    cut = {"id": "c", "start": 0, "duration": round(seconds, 3), "channel": 0, "type": "MonoCut"}
    record = {**cut, "recording": {**recording, "duration": seconds}, "supervisions": [supervision]}
    path = write_lines(tmp_path / "cuts.jsonl", json.dumps(record))
    [found] = listed(path, "lhotse").utterances.to_pylist()
    assert (found["key"], found["text"], found["start"]) == ("c", "t", None)
