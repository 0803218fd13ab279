"""NIST SPHERE, uncompressed: what the LDC's corpora are in.

    "NIST_1A\\n" | size of the header, 7 columns and a newline | lines `<name> -<type> <value>` | "end_head" | padding
    samples of all channels, interleaved

Source: NIST, SPHERE 2.6 documentation
"""

from __future__ import annotations

from .base import AudioError
from .pcm_file import PcmLayout, ReadAt, pcm_codec

_MAGIC = b"NIST_1A\n"
_MOST_HEADER_BYTES = 1 << 20
_CODINGS = {"pcm": "int", "ulaw": "mulaw", "mu-law": "mulaw", "alaw": "alaw"}
_WIDTHS = {"int": (1, 2, 3, 4), "mulaw": (1,), "alaw": (1,)}


def _matches(head: memoryview) -> bool:
    return bytes(head[: len(_MAGIC)]) == _MAGIC


def _parse(read: ReadAt, size: int) -> PcmLayout:
    stated = bytes(read(8, 8)).strip()
    header_bytes = int(stated) if stated.isdigit() else 0
    if not 16 < header_bytes <= _MOST_HEADER_BYTES:
        raise AudioError(f"not audio: a SPHERE header of {stated!r} bytes")
    if header_bytes > size:
        raise AudioError("truncated: the file ends within its SPHERE header")
    fields = _fields(bytes(read(16, header_bytes - 16)))
    coding = fields.get("sample_coding", "pcm").lower()
    if coding not in _CODINGS:
        raise AudioError(f"SPHERE compressed as {coding!r}: unpack it with sph2pipe first")
    kind, width = _CODINGS[coding], _number(fields, "sample_n_bytes", 1 if coding != "pcm" else 2)
    channels, rate = _number(fields, "channel_count", 1), _number(fields, "sample_rate", 0)
    if width not in _WIDTHS[kind] or channels < 1 or rate < 1:
        raise AudioError(f"not audio: the SPHERE header says {channels} channels of {width} bytes at {rate} Hz")
    if fields.get("channels_interleaved", "TRUE").upper() == "FALSE":
        raise AudioError("SPHERE whose channels are not interleaved is not supported")
    count = _number(fields, "sample_count", -1)
    big_endian = fields.get("sample_byte_format", "01").startswith("1") and width > 1
    return PcmLayout(kind, width, big_endian, channels, rate, header_bytes, None if count < 0 else count)


def _fields(header: bytes) -> dict[str, str]:
    fields = {}
    for line in header.decode("latin-1").split("\n"):
        parts = line.split(None, 2)
        if parts[:1] == ["end_head"]:
            break
        if len(parts) == 3 and parts[1].startswith("-"):
            fields[parts[0]] = parts[2].strip()
    return fields


def _number(fields: dict[str, str], name: str, missing: int) -> int:
    text = fields.get(name)
    if text is None:
        return missing
    if not text.isdecimal():
        raise AudioError(f"not audio: the SPHERE header says {name} {text!r}")
    return int(text)


CODEC = pcm_codec("sphere", frozenset({".sph", ".nist", ".wv1", ".wv2"}), _matches, _parse)
