"""The header walk finds what tarfile finds, in every format, and never takes a damaged or cut tar for a whole one."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uttershard.pipeline.dataset.tar import BLOCK, TarError, map_tar, split_name, walk_span, walk_tar
from uttershard.pipeline.errors import DataError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@dataclass(frozen=True)
class Entry:
    """What goes into a tar."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""


def make_tar(entries: Iterable[Entry], form: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.size, info.linkname = entry.kind, len(entry.data), entry.target
            tar.addfile(info, io.BytesIO(entry.data))
    return stream.getvalue()


def walked(data: bytes) -> list[tuple[str, bytes, str]]:
    return [
        (member.name.rstrip("/"), data[member.start : member.start + member.size], member.kind)
        for member in walk_tar(memoryview(data))
    ]


def by_tarfile(data: bytes) -> list[tuple[str, bytes, str]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = []
        for info in tar.getmembers():
            file = tar.extractfile(info) if info.isreg() else None
            found.append((info.name, file.read() if file else b"", info.type.decode()))
        return found


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..")
)
entries = st.builds(Entry, name=names, data=st.binary(max_size=1200))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@given(chosen=st.lists(entries, max_size=5))
@settings(max_examples=60)
def test_finds_what_tarfile_finds(form: int, chosen: list[Entry]) -> None:
    try:
        data = make_tar(chosen, form)
    except ValueError:  # USTAR has no room for the name
        return
    assert walked(data) == by_tarfile(data)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_long_names_and_long_links(form: int) -> None:
    long = "folder/" * 40 + "x" * 300
    data = make_tar(
        [
            Entry(f"{long}.flac", b"audio"),
            Entry("link", kind=tarfile.SYMTYPE, target=long),
            Entry("hard", kind=tarfile.LNKTYPE, target=f"{long}.flac"),
            Entry("folder", kind=tarfile.DIRTYPE),
            Entry("語" * 60, b"x" * BLOCK),
        ],
        form,
    )
    assert walked(data) == [(name, content, kind) for name, content, kind in by_tarfile(data)]
    assert walked(data)[0] == (f"{long}.flac", b"audio", "0")


def test_a_ustar_prefix_is_part_of_the_name() -> None:
    name = "p" * 120 + "/" + "n" * 90
    data = make_tar([Entry(name, b"1")], tarfile.USTAR_FORMAT)
    assert walked(data) == [(name, b"1", "0")]


def test_a_link_that_states_a_size_has_no_data() -> None:
    header = tarfile.TarInfo("link")
    header.type, header.linkname, header.size = tarfile.LNKTYPE, "target", 5000
    data = header.tobuf(tarfile.USTAR_FORMAT) + make_tar([Entry("next", b"1")], tarfile.USTAR_FORMAT)
    assert [name for name, _, _ in walked(data)] == ["link", "next"]


def test_base_256_sizes() -> None:
    info = tarfile.TarInfo("big")
    info.size = 9 << 30  # more than eleven octal digits hold
    header = info.tobuf(tarfile.GNU_FORMAT)
    assert header[124] == 0x80
    with pytest.raises(TarError, match=f"promises {9 << 30} bytes"):
        list(walk_tar(memoryview(header + bytes(2 * BLOCK))))
    small = bytearray(make_tar([Entry("small", b"12345")], tarfile.GNU_FORMAT))
    small[124:136] = bytes([0x80]) + (5).to_bytes(11, "big")
    small[148:156] = b"%06o\0 " % (sum(small[:148]) + sum(small[156:512]) + 8 * 0x20)
    assert walked(bytes(small)) == [("small", b"12345", "0")]


def test_pax_sizes_win_over_the_header() -> None:
    record = b"12 size=700\n"
    pax = tarfile.TarInfo("pax")
    pax.type, pax.size = tarfile.XHDTYPE, len(record)
    liar = tarfile.TarInfo("file")
    liar.size = 0
    built = pax.tobuf(tarfile.USTAR_FORMAT) + record.ljust(BLOCK, b"\0") + liar.tobuf(tarfile.USTAR_FORMAT)
    built += (b"x" * 700).ljust(2 * BLOCK, b"\0") + bytes(2 * BLOCK)
    assert walked(built) == [("file", b"x" * 700, "0")]


WHOLE = make_tar(
    [Entry("a.flac", b"audio" * 200), Entry("a.json", b'{"id": "a"}'), Entry("b" * 130 + ".txt", b"")],
    tarfile.PAX_FORMAT,
)
END = len(WHOLE.rstrip(b"\0")) // BLOCK * BLOCK + BLOCK
"""Where the end mark begins."""


@given(length=st.integers(0, END + 2 * BLOCK - 1))
@settings(max_examples=300)
def test_a_cut_is_never_a_silent_end(length: int) -> None:
    with pytest.raises(TarError, match=r"cut|damaged"):
        list(walk_tar(memoryview(WHOLE[:length])))


def test_padding_after_the_end_mark_is_optional() -> None:
    assert walked(WHOLE[: END + 2 * BLOCK]) == walked(WHOLE)


def test_a_flipped_bit_in_a_header_is_an_error_or_changes_nothing() -> None:
    original = walked(WHOLE)
    headers = [member.header for member in walk_tar(memoryview(WHOLE))]
    unnoticed = 0
    for header in headers:
        for position in range(header, header + BLOCK):
            for bit in range(8) if position - header >= 148 else (0, 7):
                damaged = bytearray(WHOLE)
                damaged[position] ^= 1 << bit
                try:
                    assert walked(bytes(damaged)) == original
                    unnoticed += 1
                    # Only a blank or a leading zero of the checksum itself can be written otherwise.
                    assert 148 <= position - header < 156
                except TarError as error:
                    assert "offset" in str(error) or "byte" in str(error)
    assert unnoticed <= 8 * len(headers)


@given(position=st.integers(0, len(WHOLE) - 1), value=st.binary(min_size=1, max_size=700))
@settings(max_examples=300)
def test_any_damage_gives_members_or_a_tar_error(position: int, value: bytes) -> None:
    damaged = bytearray(WHOLE)
    damaged[position : position + len(value)] = value
    try:
        walked(bytes(damaged))
    except TarError as error:
        assert str(error)


@given(data=st.binary(max_size=3000))
def test_what_is_no_tar_is_refused(data: bytes) -> None:
    with pytest.raises(TarError):
        list(walk_tar(memoryview(b"\1" + data)))


@pytest.mark.parametrize(
    "record",
    [
        b"x",
        b"9" * 400 + b" path=a\n",
        b"0 path=a\n",
        b"99 path=a\n",
        "³ path=a\n".encode(),
        b"11 size=-5\n",
        b"13 size=\xc2\xb2\xc2\xb2\n",
        b"30 size=12345678901234567890\n",
    ],
)
def test_a_damaged_pax_header_is_named(record: bytes) -> None:
    pax = tarfile.TarInfo("pax")
    pax.type, pax.size = tarfile.XHDTYPE, len(record)
    data = pax.tobuf(tarfile.USTAR_FORMAT) + record.ljust(BLOCK, b"\0") + WHOLE
    with pytest.raises(TarError, match="offset 0"):
        list(walk_tar(memoryview(data)))


def test_a_long_name_without_its_member_is_no_end() -> None:
    pax = tarfile.TarInfo("pax")
    pax.type = tarfile.XHDTYPE
    with pytest.raises(TarError, match="offset 512"):
        list(walk_tar(memoryview(pax.tobuf(tarfile.USTAR_FORMAT) + bytes(20 * BLOCK))))


def test_data_after_the_end_mark_is_damage() -> None:
    with pytest.raises(TarError, match="data after an empty block"):
        list(walk_tar(memoryview(WHOLE + WHOLE)))


def test_an_empty_tar_has_no_members() -> None:
    assert walked(make_tar([], tarfile.USTAR_FORMAT)) == []


def test_offsets_are_those_of_the_bytes() -> None:
    for member in walk_tar(memoryview(WHOLE)):
        assert member.header % BLOCK == member.start % BLOCK == member.end % BLOCK == 0
        span = memoryview(WHOLE)[member.header : member.end]
        (alone,) = walk_span(span)
        assert (alone.name, alone.header, alone.start) == (member.name, 0, member.start - member.header)


def test_a_span_with_an_empty_block_is_damaged() -> None:
    with pytest.raises(TarError, match="empty block"):
        list(walk_span(memoryview(bytes(BLOCK))))


@pytest.mark.parametrize(
    ("name", "parts"),
    [("a.flac", ("a", "flac")), ("d.ir/a.b.C", ("d.ir/a", "b.c")), ("a", ("a", "")), (".hidden", ("", "hidden"))],
)
def test_names_split_as_webdataset_does(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


def test_mapping_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"")
    assert len(map_tar(path)) == 0
    path.write_bytes(WHOLE)
    assert bytes(map_tar(path)) == WHOLE
    with pytest.raises(DataError, match="does not exist"):
        map_tar(tmp_path / "none.tar")
