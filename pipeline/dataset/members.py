"""Utterance ids and the tar member names made of them.

    id                         member name (without its ending)
    84-121123-0000             84-121123-0000                       [A-Za-z0-9_-]{1,80}: the id itself
    tom/chapter.1              tom%2Fchapter%2E1                    else percent-encoded UTF-8, `.` and `/` too
    (longer than 80 bytes)     first 62 bytes + %h + 16 hex digits  cut between characters, xxh3_64 of the whole id

WebDataset splits a member's name at its first dot, so no dot may be left in it. `%h` never comes out of
percent-encoding (h is no hex digit), so the three forms can't meet. The true id is in the sidecar and in `.json`.
"""

import re
import unicodedata

import xxhash

MAX_MEMBER_BYTES = 80
"""With the longest ending (`.flac`) a name stays within the 100 bytes of a USTAR name field."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")
_HASH_MARK = "%h"


def member_name(key: str) -> str:
    """Name the tar members of an utterance (without their endings), at most 80 ASCII bytes, no dots.

    Example:
        >>> member_name("84-121123-0000"), member_name("tom/chapter.1")
        ('84-121123-0000', 'tom%2Fchapter%2E1')
    """
    if _PLAIN.fullmatch(key):
        return key
    encoded = ["".join(map(_encode_byte, character.encode("utf-8"))) for character in key]
    whole = "".join(encoded)
    if len(whole) <= MAX_MEMBER_BYTES:
        return whole
    digest = f"{_HASH_MARK}{xxhash.xxh3_64_hexdigest(key.encode('utf-8'))}"
    room = MAX_MEMBER_BYTES - len(digest)
    head = ""
    for piece in encoded:
        if len(head) + len(piece) > room:
            break
        head += piece
    return head + digest


def is_member_of(name: str, key: str) -> bool:
    """Say whether a tar member can be one of an utterance, by its name.

    In our tars the name is made of the id, to which merging may have put a prefix up to a slash. In adopted ones the
    id is the name up to a dot (WebDataset's first, WeNet's last), maybe with the tar's name before it.

    Example:
        >>> is_member_of("tom%2F1.flac", "tom/1"), is_member_of("a.1.wav", "a.1"), is_member_of("7.wav", "train-0/7")
        (True, True, True)
        >>> is_member_of("8.wav", "7")
        False
    """
    folder, slash, base = name.removeprefix("./").rpartition("/")
    parts = base.split(".")
    tails = (key[at:] for at in range(len(key)) if at == 0 or key[at - 1] == "/")
    if any(folder + slash + parts[0] == member_name(tail) for tail in tails):
        return True
    stems = (folder + slash + ".".join(parts[:count]) for count in range(1, len(parts)))
    return any(key == stem or key.endswith(f"/{stem}") for stem in stems)


def key_problem(key: str) -> str | None:
    """Say why an utterance id is refused, or return None if it is a good one.

    Example:
        >>> key_problem("tom/1.flac"), key_problem("")
        (None, 'the id is empty')
    """
    if not key:
        return "the id is empty"
    for position, character in enumerate(key):
        category = unicodedata.category(character)
        if category == "Cc":
            return f"the id {key!r} has a control character (U+{ord(character):04X}) at position {position}"
        if category == "Cs":
            return f"the id {key!r} is not valid Unicode (a lone surrogate at position {position})"
    return None


def _encode_byte(byte: int) -> str:
    character = chr(byte)
    return character if _PLAIN.fullmatch(character) else f"%{byte:02X}"
