"""Corpora in archives: read without unpacking, whatever the layout; what is made to do harm does none."""

import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from corpora import RATE, files_of, noise, read_errors, write_audio, write_jsonl, write_lines
from source_checks import assert_samples, list_corpus, rows_of, samples_of
from uttershard.pipeline import ShardSet
from uttershard.pipeline.errors import DataError
from uttershard.pipeline.reading.codecs import AudioError
from uttershard.writers import pack
from uttershard.writers.archives import read_archive
from uttershard.writers.byte_files import SeekableGzip, buffered

KINDS = ("tar", "tar.gz", "zip", "stored.zip")


def kaldi(folder: Path) -> None:
    for number in range(4):
        write_audio(folder / "wavs" / f"rec{number}.wav", 0.5, seed=number)
    write_lines(folder / "wav.scp", *(f"rec{number} wavs/rec{number}.wav" for number in range(4)))
    write_lines(folder / "text", *(f"rec{number} text {number}" for number in range(4)))


def jsonl(folder: Path) -> None:
    kaldi(folder)
    for name in ("wav.scp", "text"):
        (folder / name).unlink()
    records = [{"audio_filepath": f"wavs/rec{number}.wav", "text": f"text {number}"} for number in range(4)]
    write_jsonl(folder / "train.jsonl", records)


def plain(folder: Path) -> None:
    for number in range(4):
        write_audio(folder / f"rec{number}.wav", 0.5, seed=number)
        write_lines(folder / f"rec{number}.txt", f"text {number}")


def archived(folder: Path, kind: str, make: Callable[[Path], None]) -> Path:
    """Make a corpus and an archive of it; the corpus itself is gone then."""
    corpus = folder / "made" / "corpus"
    make(corpus)
    path = folder / f"corpus.{kind}"
    if kind.endswith("zip"):
        method = zipfile.ZIP_STORED if kind.startswith("stored") else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method) as target:
            for file in sorted(corpus.rglob("*")):
                target.write(file, file.relative_to(corpus.parent))
    else:
        with tarfile.open(path, "w:gz" if kind.endswith("gz") else "w") as tar:
            tar.add(corpus, "corpus")
    (folder / "made").rename(folder / "elsewhere")
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("make", "inner"), [(kaldi, ""), (jsonl, "/corpus/train.jsonl"), (plain, "")])
def test_layouts_in_archives(tmp_path: Path, kind: str, make: Callable[[Path], None], inner: str) -> None:
    path = archived(tmp_path, kind, make)
    listing = list_corpus(f"{path}{inner}")
    rows = rows_of(listing)
    assert not listing.refused
    assert {key: row["text"] for key, row in rows.items()} == {f"rec{number}": f"text {number}" for number in range(4)}
    for number in (3, 0, 2, 1):
        assert_samples(rows[f"rec{number}"], noise(0.5, number))


def test_segments_within_an_archive(tmp_path: Path) -> None:
    def segmented(folder: Path) -> None:
        kaldi(folder)
        write_lines(folder / "segments", "part rec1 0.25 0.375")
        write_lines(folder / "text", "part hello")

    for number, kind in enumerate(KINDS):
        row = rows_of(list_corpus(archived(tmp_path / str(number), kind, segmented)))["part"]
        assert_samples(row, noise(0.5, 1)[RATE // 4 : RATE * 3 // 8])


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_packed_as_the_folder_would_be(tmp_path: Path, kind: str) -> None:
    path = archived(tmp_path, kind, kaldi)
    before = sorted(tmp_path.rglob("*"))
    summary = pack(path, tmp_path / "from-archive", workers=2, shards=2)
    assert (summary.utterances, summary.refused) == (4, 0)
    assert sorted(file for file in tmp_path.rglob("*") if "from-archive" not in file.parts) == before
    pack(tmp_path / "elsewhere" / "corpus", tmp_path / "from-folder", workers=2, shards=2)
    tars = [files_of(tmp_path / name) for name in ("from-archive", "from-folder")]
    assert [tars[0][f"shard-00000{shard}.tar"] for shard in range(2)] == [
        tars[1][f"shard-00000{shard}.tar"] for shard in range(2)
    ]


def test_archives_in_a_store(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    for kind in KINDS:
        store.pipe_file(f"/corpora/c.{kind}", archived(tmp_path / kind, kind, kaldi).read_bytes())
        rows = rows_of(list_corpus(f"memory://corpora/c.{kind}", "kaldi"))
        assert_samples(rows["rec2"], noise(0.5, 2))
    folder = tmp_path / "folder"
    kaldi(folder)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        store.pipe_file(f"/corpora/plain/{file.relative_to(folder)}", file.read_bytes())
    rows = rows_of(list_corpus("memory://corpora/plain", "kaldi"))
    assert rows["rec2"]["uri"] == "memory://corpora/plain/wavs/rec2.wav"
    assert_samples(rows["rec2"], noise(0.5, 2))
    assert len(rows_of(list_corpus("memory://corpora/plain", "folder", tables="ignore"))) == 4


def hostile_tar(path: Path) -> Path:
    write_audio(path.parent / "good.wav", 0.2)
    audio = (path.parent / "good.wav").read_bytes()
    names = ["good.wav", "../escape.wav", "/etc/absolute.wav", "a/../../up.wav", "good.wav"]
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(audio)
            tar.addfile(info, io.BytesIO(audio))
        for name, kind in (("soft.wav", tarfile.SYMTYPE), ("hard.wav", tarfile.LNKTYPE), ("dev.wav", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    return path


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_names_and_links_that_would_do_harm(tmp_path: Path, kind: str) -> None:
    path = hostile_tar(tmp_path / f"x.{kind}")
    listing = list_corpus(path, "folder")
    assert list(rows_of(listing)) == ["good"]
    reasons = {refusal.source.rpartition(": ")[2]: refusal.reason for refusal in listing.refused}
    assert reasons == {
        "../escape.wav": "the name leaves the folder of the archive",
        "/etc/absolute.wav": "the name is absolute",
        "a/../../up.wav": "the name leaves the folder of the archive",
        "good.wav": "the archive has this name twice",
        "soft.wav": "a symbolic link; links are not followed",
        "hard.wav": "a hard link; links are not followed",
        "dev.wav": "a tar member of type '3', which is no file",
    }


def test_hostile_zip_names(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    audio = write_audio(tmp_path / "good.wav", 0.2).read_bytes()
    with zipfile.ZipFile(path, "w") as target:
        for name in ("good.wav", "../escape.wav", "C:\\windows\\a.wav"):
            target.writestr(name, audio)
        link = zipfile.ZipInfo("soft.wav")
        link.external_attr = 0o120777 << 16
        target.writestr(link, "/etc/passwd")
    listing = list_corpus(path, "folder")
    assert list(rows_of(listing)) == ["good"]
    assert len(listing.refused) == 3


def test_refused_members_are_counted(tmp_path: Path) -> None:
    path = hostile_tar(tmp_path / "x.tar")
    summary = pack(path, tmp_path / "out", from_="folder", workers=1, max_errors=10, shards=1)
    assert (summary.utterances, summary.refused) == (1, 7)
    assert len(read_errors(tmp_path / "out")) == 7
    assert len(ShardSet.open(str(tmp_path / "out")).index(["key"])) == 1


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_a_tar_that_claims_terabytes(tmp_path: Path, kind: str) -> None:
    info = tarfile.TarInfo("huge.wav")
    info.size = 8 << 40
    data = info.tobuf(tarfile.GNU_FORMAT) + b"RIFF" + bytes(10_000)
    path = tmp_path / f"x.{kind}"
    path.write_bytes(zlib_gzip(data) if kind.endswith("gz") else data)
    with pytest.raises(DataError, match=rf"{path.name}: .*cut"):
        list_corpus(path, "folder")


def zlib_gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def test_a_gzip_bomb(tmp_path: Path) -> None:
    info = tarfile.TarInfo("zeros.wav")
    info.size = 1 << 30
    path = tmp_path / "bomb.tar.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(info.tobuf()))
        for _ in range(200):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())
    with pytest.raises(DataError, match=r"bomb\.tar\.gz: unpacks to more than 200 times its size"):
        read_archive(str(path))


def test_zip_bombs(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        with target.open("zeros.wav", "w") as member:
            for _ in range(100):
                member.write(bytes(1 << 20))
        target.writestr("good.wav", write_audio(tmp_path / "good.wav", 0.2).read_bytes())
    listing = list_corpus(path, "folder")
    assert list(rows_of(listing)) == ["good"]
    assert [refusal.reason.partition(",")[2] for refusal in listing.refused] == [
        " more than 200 times its size: taken for a bomb"
    ]


def test_zip_members_that_share_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("a.wav", bytes(5000))
        target.writestr("b.wav", bytes(10))
        target.filelist[1].header_offset = 20
    with pytest.raises(DataError, match=r"x\.zip: .*taken for a bomb"):
        read_archive(str(path))


def test_a_zip_member_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("a.wav", write_audio(tmp_path / "a.wav", 1.0).read_bytes())
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, directory + 24, 1000)
    path.write_bytes(data)
    row = rows_of(list_corpus(path, "folder"))["a"]
    with pytest.raises(
        AudioError, match="damaged zip member: unpacks to 1001 bytes, or others, where 1000 were promised"
    ):
        samples_of(row)


def test_what_is_no_archive(tmp_path: Path) -> None:
    for kind in ("tar", "tar.gz", "zip"):
        path = tmp_path / f"x.{kind}"
        path.write_bytes(b"<html>" * 1000)
        with pytest.raises(DataError, match=rf"x\.{kind}: "):
            list_corpus(path, "folder")


@pytest.mark.parametrize(("kind", "called"), [("tar", "tar.gz"), ("tar.gz", "tar")])
def test_a_tar_is_packed_or_not_whatever_it_is_called(tmp_path: Path, kind: str, called: str) -> None:
    path = archived(tmp_path, kind, plain)
    renamed = path.rename(tmp_path / f"renamed.{called}")
    assert_samples(rows_of(list_corpus(renamed))["rec3"], noise(0.5, seed=3))


def test_an_archive_of_nothing_but_refused_members_says_why(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as target:
        target.writestr("a.wav", b"RIFF")
    with pytest.raises(DataError, match=r"the corpus is empty: .*a\.wav: packed by method 14"):
        pack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("kind", ["hf", "lhotse"])
def test_what_has_to_be_unpacked_first(tmp_path: Path, kind: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("t.parquet", "recording.000000.tar", "cuts.000000.jsonl.gz"):
            archive.writestr(f"corpus/{name}", b"")
    with pytest.raises(DataError, match=r"a\.zip/corpus/.*: .* can't be read within an archive: unpack it"):
        list_corpus(tmp_path / "a.zip", kind)


def test_gzip_seeks_to_any_place() -> None:
    content = noise(600.0).tobytes()  # 19 MB: several snapshots
    halves = [zlib_gzip(content[: 10 << 20]), zlib_gzip(content[10 << 20 :])]
    stream = buffered(SeekableGzip(io.BytesIO(b"".join(halves) + bytes(512))))
    for place in (0, 15_000_000, 9_999_999, 4_194_304, len(content) - 5, 1, 10 << 20):
        stream.seek(place)
        assert stream.read(1000) == content[place : place + 1000]
    stream.seek(len(content))
    assert stream.read(10) == b""
    with pytest.raises(AudioError, match="cut"):
        cut = SeekableGzip(io.BytesIO(halves[0][:-1000]))
        cut.seek(11_000_000)
        cut.read(1)


def test_an_odd_name_is_no_place(tmp_path: Path) -> None:
    """Marks of our own addresses in the names of plain files."""
    for name in ("a#range=1+2x.wav", "b#channels=.wav", "c#d.wav"):
        write_audio(tmp_path / name, 0.1)
    write_jsonl(
        tmp_path / "m.jsonl", [{"audio_filepath": path.name, "id": path.stem} for path in tmp_path.glob("*.wav")]
    )
    rows = rows_of(list_corpus(tmp_path / "m.jsonl"))
    assert len(rows) == 3
    for row in rows.values():
        assert_samples(row, noise(0.1))
    assert json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
