"""How the place of an utterance's audio is written down for each tool."""

import shlex

from uttershard.pipeline.dataset.files import local_path
from uttershard.pipeline.errors import ConfigError

from ..locators import range_uri
from .utterances import AudioPlace


def as_range(audio: AudioPlace) -> str:
    """Write it as an address that `uttershard pack` reads: the file, or `<tar>#range=<offset>+<bytes>`."""
    if audio.offset is None or audio.nbytes is None:
        return audio.address
    return range_uri(audio.address, audio.offset, audio.nbytes)


def as_command(audio: AudioPlace) -> str:
    """Write it as a shell command that prints the audio, for tools that read from commands.

    Raises:
        ConfigError: The tar is remote, which no plain command reads.
    """
    if local_path(audio.address) is None:
        raise ConfigError(f"{audio.address}: this layout points into tars by commands, which read local ones; extract")
    # tail and head count bytes and are on every system; tail's first byte is number 1.
    return f"tail -c +{(audio.offset or 0) + 1} {shlex.quote(audio.address)} | head -c {audio.nbytes}"
