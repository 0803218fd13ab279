"""What can go wrong with one attempt to talk to a store; retry.py decides what becomes of it."""

import re


class AttemptError(Exception):
    """One attempt failed. Raised `from None`: what libraries put into their messages may hold credentials."""


class TransientError(AttemptError):
    """Worth another attempt."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class OutOfTimeError(TransientError):
    """The time for the whole read was up in the middle of an attempt, which says nothing about its cause."""


class UnreachableError(TransientError):
    """No connection at all: the store is down, or the address is wrong."""


class DeniedError(AttemptError):
    """The store knows the request and refuses it, or there are no credentials to ask with."""


class MissingError(AttemptError):
    """There is no such object, or no such bucket."""


class ReplacedError(AttemptError):
    """The object is not the one that was read before, or not as long as it should be."""


class HopelessError(AttemptError):
    """Anything else that asking again does not change."""


_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(\w+://[^\s?'\"]+)\?[^\s'\")]+")
_SECRET_OPTION = re.compile(r"key|secret|token|password|sas|credential", re.IGNORECASE)


def redact(text: str, options: object = None) -> str:
    """Return text without what may be a credential: user info and query of addresses, values of secret options.

    Example:
        >>> redact("GET https://me:pw@host/train.tar?X-Amz-Signature=9f failed")
        'GET https://host/train.tar?… failed'
    """
    text = _QUERY.sub(r"\1?…", _USERINFO.sub("", text))
    for secret in _secrets(options):
        text = text.replace(secret, "…")
    return text


def is_secret(name: str) -> bool:
    """Say whether an option of that name may hold a credential.

    Example:
        >>> is_secret("secret"), is_secret("sas_token"), is_secret("endpoint_url")
        (True, True, False)
    """
    return bool(_SECRET_OPTION.search(name))


def _secrets(options: object, inside_secret: bool = False) -> list[str]:
    if isinstance(options, dict):
        return [
            secret
            for name, value in options.items()
            for secret in _secrets(value, inside_secret or is_secret(str(name)))
        ]
    # Shorter ones would make holes in ordinary words, and protect nothing.
    return [options] if inside_secret and isinstance(options, str) and len(options) >= 6 else []


def first_line(error: BaseException) -> str:
    """Return what an exception says, its type first, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
