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
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import AudioError, decode, measure, probe
from uttershard.pipeline.reading.convert import to_int16
from uttershard.writers import pack, verify
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
NOISE = np.random.default_rng(1).bytes(300)
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
    "streamed, 1 less": riff(chunk(b"fmt ", PLAIN), b"data\xfe\xff\xff\xff" + SAMPLES.tobytes()),
    "streamed, a header less than 2 GiB": riff(chunk(b"fmt ", PLAIN), b"data\xdb\xff\xff\x7f" + SAMPLES.tobytes()),
    "odd chunk padded by a byte that is not zero": riff(
        chunk(b"fmt ", PLAIN), b"inst\x07\0\0\0abcdefg\x01", chunk(b"data", SAMPLES.tobytes())
    ),
    "bext before and byte rate wrong": riff(
        chunk(b"bext", bytes(602)),
        chunk(b"fmt ", PLAIN[:8] + b"\x07\0\0\0" + PLAIN[12:]),
        chunk(b"data", SAMPLES.tobytes()),
    ),
    "RF64 without its sizes": b"RF64" + WAV[4:],
    "half a sample behind": riff(chunk(b"fmt ", PLAIN), chunk(b"data", SAMPLES.tobytes() + b"x")),
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
    "ID3v2 behind MP3": MP3 + b"3DI\x04\0\0\0\0\0\0",
    "zeros behind MP3": MP3 + bytes(5000),
    "lyrics and ID3v1 behind MP3": MP3 + b"LYRICSBEGIN" + b"x" * 99 + b"000110LYRICS200" + b"TAG" + b" " * 125,
    "noise before MP3": NOISE + MP3,
    "noise amid MP3": MP3[:2000] + NOISE + MP3[2000:],
    "ID3 that says too much before MP3": b"ID3\x04\0\0\0\0\x0f\x7f" + bytes(128) + MP3,
    "ID3 that says too little before MP3": b"ID3\x04\0\0\0\0\0\x10" + bytes(128) + MP3,
    "ID3 twice before MP3": ID3 + ID3 + MP3,
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
    whole = decode(info.codec, data, info.num_samples, info.channels)
    found = decode(cut.info.codec, cut.data, cut.info.num_samples, cut.info.channels)
    if "MP3" in name:
        np.testing.assert_array_equal(found, to_int16(whole[4000:12_000]))
        if name != "noise amid MP3":
            np.testing.assert_array_equal(whole, decode("mp3", MP3, len(SAMPLES), 1))
    else:
        np.testing.assert_array_equal(found, whole[4000:12_000])
        np.testing.assert_allclose(whole, SAMPLES / 32768 if whole.dtype == np.float32 else SAMPLES, atol=1e-7)


COMPRESSED = {
    "MP3 in WAV": riff(chunk(b"fmt ", struct.pack("<HHIIHHH", 0x55, 1, 16_000, 4000, 1, 0, 0)), chunk(b"data", MP3)),
    "IMA ADPCM": encoded("WAV", "IMA_ADPCM"),
    "MS ADPCM": encoded("WAV", "MS_ADPCM"),
    "GSM": encoded("WAV", "GSM610"),
    "W64": encoded("W64", "PCM_16"),
    "VOC": encoded("VOC", "PCM_16"),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_wav_of_other_codecs_is_left_to_ffmpeg(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(COMPRESSED[name])
    audio = fetch(str(path), None, None, PackSettings())
    assert audio.info.codec == "flac"
    # These codecs pad to whole blocks, as MP3 does with the 1105 samples of its delay.
    assert 0 <= audio.info.num_samples - len(SAMPLES) <= 2 * 1105


NO_AUDIO = {
    "a web page": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not audio: starts with b'<!DOCTYPE"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not audio"),
    "only a tag": (ID3, "ends within its ID3 tag"),
    "a tag longer than the file": (b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + MP3, "ends within its ID3 tag"),
    "a block that can't be": (
        riff(chunk(b"fmt ", PLAIN[:12] + b"\x04\0\x10\0"), chunk(b"data", b"1234")),
        "frames of 4 bytes",
    ),
    "no rate": (riff(chunk(b"fmt ", PLAIN[:4] + bytes(4) + PLAIN[8:]), chunk(b"data", b"1234")), "at 0 Hz"),
    "a header alone": (WAV[:44], "the file holds 0"),
    "half a header": (WAV[:30], "cut short"),
    "data before its format": (riff(chunk(b"data", b"1234"), chunk(b"fmt ", PLAIN)), "no format chunk before its data"),
    "a chunk beyond the file": (riff(chunk(b"fmt ", PLAIN), b"LIST\xf0\xff\xff\xff" + WAV), "ends before its data"),
    "SPHERE by shorten": (
        b"NIST_1A\n   1024\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n".ljust(2000),
        "unpack it with sph2pipe first",
    ),
    "zeros": (bytes(5000), "not audio"),
    "FLAC that promises too little": (FLAC[:22] + struct.pack(">I", 8000) + FLAC[26:], "promises 8000 samples"),
}


@pytest.mark.parametrize("name", NO_AUDIO)
def test_what_is_no_audio_says_why(name: str) -> None:
    data, reason = NO_AUDIO[name]
    with pytest.raises(AudioError, match=reason):
        measure(data)
    with pytest.raises(AudioError, match=reason):
        probe(io.BytesIO(data))


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
        ("s", "the member 's.wav' is a sparse file: its bytes are not there as they are")
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


UTF16 = {
    "m.jsonl": '{"audio_filepath": "é.wav"}\n',
    "t.csv": "id,audio_filepath\né,one.wav\n",
    "wav.scp": "é one.wav\n",
    "validated.tsv": "client_id\tpath\tsentence\n",
}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("name", UTF16)
def test_utf_16_is_told_once(tmp_path: Path, name: str, encoding: str) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / name).write_bytes(UTF16[name].encode(encoding))
    with pytest.raises(DataError, match="not UTF-8 but UTF-16"):
        listed(tmp_path / name)


@pytest.mark.parametrize("source", ["jsonl", "nemo", "lhotse"])
@pytest.mark.parametrize(("text", "how"), [("[{}, {}]", r"jq -c '\.\[\]'"), ('{\n "id": 1\n}\n', r"jq -c \. ")])
def test_a_json_document_is_told_once(tmp_path: Path, source: str, text: str, how: str) -> None:
    (tmp_path / "m.json").write_text(text, "utf-8")
    with pytest.raises(DataError, match=how):
        listed(tmp_path / "m.json", source)


def test_a_quote_that_is_not_closed_names_the_lines_it_takes(tmp_path: Path) -> None:
    (tmp_path / "one.wav").write_bytes(WAV)
    rows = ["id,audio_filepath,text", "a,one.wav,x", 'b,one.wav,"open', "c,one.wav,y", "d,one.wav,z"]
    listing = listed(write_lines(tmp_path / "t.csv", *rows))
    assert listing.utterances["key"].to_pylist() == ["a"]
    [refusal] = listing.refused
    assert refusal.source == "t.csv:3"
    assert refusal.reason.endswith("(lines 3 to 5)")


def test_librispeech_with_odd_files(tmp_path: Path) -> None:
    folder = tmp_path / "1" / "2"
    folder.mkdir(parents=True)
    for name in ("1-2-0", "1-2-1", "1-2-3", "extra", ".hidden"):
        (folder / f"{name}.flac").write_bytes(FLAC)
    write_lines(folder / "1-2.trans.txt", "1-2-0 HI\r", "1-2-1", "1-2-2 NO AUDIO", "", b"1-2-3 B\xffD", "1-2-0 TWICE")
    (folder / "._1-2.trans.txt").write_bytes(b"\0\5\26\7")
    (tmp_path / "SPEAKERS.TXT").write_text("1 | F", "utf-8")
    listing = listed(tmp_path)
    assert listing.utterances.select(["key", "text"]).to_pylist() == [
        {"key": "1-2-0", "text": "HI"},
        {"key": "1-2-1", "text": ""},
    ]
    assert sorted(str(key) for key, _, _ in listing.refused) == ["1-2-0", "1-2-2", "1-2-3", "extra"]


def test_a_folder_takes_transcripts_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.WAV").write_bytes(WAV)
    (tmp_path / "A.TXT").write_text("hi", "utf-8")
    assert listed(tmp_path).utterances.select(["key", "text"]).to_pylist() == [{"key": "A", "text": "hi"}]


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


def test_flac_that_only_decoding_finds_damaged_is_found_by_verify_deep(tmp_path: Path) -> None:
    damaged = bytearray(FLAC)
    damaged[len(FLAC) // 2] ^= 0xFF
    (tmp_path / "corpus").mkdir()
    for name, data in (("good", FLAC), ("damaged", bytes(damaged)), ("joined", FLAC + FLAC)):
        (tmp_path / "corpus" / f"{name}.flac").write_bytes(data)
    assert pack(tmp_path / "corpus", tmp_path / "packed", shards=1, workers=1).refused == 0
    assert verify(str(tmp_path / "packed")).ok
    assert {problem.key for problem in verify(str(tmp_path / "packed"), deep=True).problems} == {"damaged", "joined"}
