"""Make the demo corpus again: espeak-ng reads our own sentences, and the audio is listed in two forms.

    demo/sentences.json          what is read (written by hand, the only input)
    demo/audio/<folder>/*.*      made: one file an utterance, and two recordings of several utterances
    demo/manifest.jsonl          made: one JSON object an utterance
    demo/kaldi/                  made: wav.scp, segments, text, utt2spk, utt2dur, utt2lang

Needs the espeak-ng program. Everything is drawn from one seed. What the seed does not fix: another version of
espeak-ng or libsndfile changes the audio, and every Opus file carries a random stream number in its headers.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
from rich.progress import track
from uttershard.pipeline.errors import ConfigError, StorageError

SAMPLE_RATE = 16_000
SHORTEST_SECONDS = 0.5
LONGEST_SECONDS = 25.0
MARGIN_SECONDS = 0.05

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Speaker:
    """One synthetic voice; ``name`` may hold any letter, ``folder`` keeps file names plain."""

    name: str
    folder: str
    language: str
    voice: str
    words_per_minute: int
    id_pattern: str


@dataclass(frozen=True)
class Encoding:
    """How soundfile is asked to write one kind of file."""

    extension: str
    container: str
    subtype: str
    compression: float | None = None


@dataclass(frozen=True)
class Utterance:
    """One line of the manifest; ``offset_samples`` is None where the utterance is the whole file."""

    key: str
    speaker: Speaker
    text: str
    audio: str
    num_samples: int
    offset_samples: int | None = None

    @property
    def recording(self) -> str:
        """The name of the file in wav.scp: the utterance's own id, or one for the recording it is cut from."""
        return self.key if self.offset_samples is None else f"{self.speaker.name}-recording"


FLAC = Encoding("flac", "FLAC", "PCM_16", compression=1.0)
WAV = Encoding("wav", "WAV", "PCM_16")
OPUS = Encoding("opus", "OGG", "OPUS")
MP3 = Encoding("mp3", "MP3", "MPEG_LAYER_III", compression=0.9)

# The ids are as odd as the ids of real corpora: dots, slashes, letters of any script.
# Each begins with the speaker's name, so that Kaldi's two sorting orders (by id, by speaker) agree.
SPEAKERS = (
    Speaker("alice", "alice", "en", "en-gb+f2", 165, "{speaker}-{number:04d}"),
    Speaker("duncan", "duncan", "en", "en-gb-scotland+m3", 150, "{speaker}/tape.{number:02d}"),
    Speaker("joe", "joe", "en", "en-us+m7", 185, "{speaker}.v1.2/{number:04d}"),
    Speaker("jürgen", "juergen", "de", "de+m2", 155, "{speaker}/straße/{number:03d}"),
    Speaker("käthe", "kaethe", "de", "de+f4", 170, "{speaker}.{number:04d}"),
    Speaker("zoé", "zoe", "fr", "fr-fr+f3", 175, "{speaker}/été.{number:03d}"),
    Speaker("françois", "francois", "fr", "fr-be+m1", 150, "{speaker}-{number:04d}"),
    Speaker("begoña", "begona", "es", "es+f1", 170, "{speaker}/{number:04d}"),
    Speaker("íñigo", "inigo", "es", "es-419+m4", 190, "{speaker}.mañana.{number}"),
    Speaker("nicolò", "nicolo", "it", "it+m5", 165, "{speaker}/città.{number:02d}"),
    Speaker("lucia", "lucia", "it", "it+f5", 150, "{speaker}_{number:04d}"),
    Speaker("noor", "noor", "nl", "nl+f2", 160, "{speaker}/{number:03d}.takes/1"),
    Speaker("łukasz", "lukasz", "pl", "pl+m6", 175, "{speaker}/część-{number:03d}"),
    Speaker("małgorzata", "malgorzata", "pl", "pl+f3", 150, "{speaker}.{number:04d}"),
    Speaker("åsa", "asa", "sv", "sv+f4", 165, "{speaker}/{number:04d}"),
    Speaker("göran", "goran", "sv", "sv+m1", 145, "{speaker}.vår.{number:03d}"),
    Speaker("şebnem", "sebnem", "tr", "tr+f1", 180, "{speaker}/{number:04d}"),
    Speaker("наташа", "natasha", "ru", "ru+f2", 160, "{speaker}/утро.{number:03d}"),
    Speaker("фёдор", "fyodor", "ru", "ru+m3", 150, "{speaker}-{number:04d}"),
    Speaker("νίκος", "nikos", "el", "el+m2", 170, "{speaker}/πρωί.{number:03d}"),
    Speaker("小梅", "xiaomei", "zh", "cmn+f1", 150, "{speaker}/早上.{number:03d}"),
    Speaker("大伟", "dawei", "zh", "cmn+m4", 170, "{speaker}.{number:04d}"),
)

# Long recordings that are cut into utterances: one of four sentences, one of five.
RECORDING_SENTENCES = {"duncan": 4, "νίκος": 5}
SINGLE_FILES = 191


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, make the corpus, print its totals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo"), help="holds sentences.json")
    parser.add_argument("--seed", type=int, default=20, help="draws sentences, lengths, codecs (default 20)")
    arguments = parser.parse_args(argv)
    try:
        utterances = make_corpus(arguments.folder, arguments.seed)
    except (ConfigError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    seconds = sum(utterance.num_samples for utterance in utterances) / SAMPLE_RATE
    size_bytes = sum(path.stat().st_size for path in (arguments.folder / "audio").rglob("*.*"))
    print(f"{len(utterances)} utterances, {seconds:.0f} s, {size_bytes / 1e6:.2f} MB of audio")
    return 0


def make_corpus(folder: Path, seed: int) -> list[Utterance]:
    """Synthesise everything under ``folder``, replacing what is there; the utterances come sorted by id."""
    if shutil.which("espeak-ng") is None:
        raise ConfigError("espeak-ng is not on the PATH; install it, e.g. `apt-get install espeak-ng`")
    sentences_path = folder / "sentences.json"
    if not sentences_path.is_file():
        raise ConfigError(f"{sentences_path} does not exist; run from the repository root, or name the folder")
    sentences = json.loads(sentences_path.read_text(encoding="utf-8"))
    shutil.rmtree(folder / "audio", ignore_errors=True)
    draw = random.Random(seed)

    utterances = [
        utterance
        for speaker in SPEAKERS
        if speaker.name in RECORDING_SENTENCES
        for utterance in make_recording(folder, speaker, sentences[speaker.language]["long"])
    ]
    jobs = list(plan_files(draw))
    for number, (speaker, target_seconds, encoding) in enumerate(track(jobs, "speaking"), 1):
        pool = sentences[speaker.language]
        text, samples = speak_about(speaker, pool["short"] + pool["long"], target_seconds, draw)
        audio = write_audio(folder, speaker, f"{number:04d}", samples, encoding)
        key = speaker.id_pattern.format(speaker=speaker.name, number=number)
        utterances.append(Utterance(key, speaker, text, audio, count_samples(folder / audio)))

    # Kaldi sorts by bytes (LC_ALL=C); UTF-8 keeps the order of code points, which is Python's.
    utterances.sort(key=lambda utterance: utterance.key)
    write_manifest(folder / "manifest.jsonl", utterances)
    write_kaldi(folder / "kaldi", utterances)
    return utterances


def plan_files(draw: random.Random) -> Iterator[tuple[Speaker, float, Encoding]]:
    """Deal lengths and codecs to speakers; many short, few long, as in real corpora, and all lengths present.

    FLAC and WAV take about 12 and 32 kB a second, so the size of the corpus is decided here: WAV is kept for short
    utterances, and most of the long ones go to the lossy codecs.
    """
    span = LONGEST_SECONDS / SHORTEST_SECONDS
    targets = [SHORTEST_SECONDS * span ** ((i / (SINGLE_FILES - 1)) ** 1.6) for i in range(SINGLE_FILES)]
    encoded = [(seconds, choose_encoding(i, seconds)) for i, seconds in enumerate(targets)]
    draw.shuffle(encoded)
    for i, (seconds, encoding) in enumerate(encoded):
        yield SPEAKERS[i % len(SPEAKERS)], seconds, encoding


def choose_encoding(index: int, seconds: float) -> Encoding:
    """The encoding of the utterance at this place in the order of length."""
    if seconds > 7 and index % 4:
        return OPUS if index % 4 % 2 else MP3
    if index % 12 == 0:
        return OPUS if index % 24 else MP3
    return WAV if index % 12 == 5 and seconds < 3 else FLAC


def speak_about(
    speaker: Speaker, pool: Sequence[str], target_seconds: float, draw: random.Random
) -> tuple[str, Samples]:
    """Choose sentences whose reading takes about ``target_seconds``, and read them.

    Reading is slow to predict, so: several draws, the best by the number of letters, then a speed that corrects the
    rest within what still sounds like speech.
    """
    rate = letters_per_second(speaker, pool)
    best = min(
        (draw_sentences(pool, rate * target_seconds, draw) for _ in range(20)),
        key=lambda text: abs(len(text) - rate * target_seconds),
    )
    samples = speak(speaker, best)
    ratio = min(1.3, max(0.8, len(samples) / SAMPLE_RATE / target_seconds))
    samples = speak(speaker, best, round(speaker.words_per_minute * ratio))
    shortest, longest = round(SHORTEST_SECONDS * SAMPLE_RATE), round(LONGEST_SECONDS * SAMPLE_RATE)
    while len(samples) > longest:
        best = best[: best.rstrip(".?。").rindex(sentence_end(best)) + 1]
        samples = speak(speaker, best)
    if len(samples) < shortest:
        samples = np.pad(samples, (0, shortest - len(samples)))
    return best, samples


def sentence_end(text: str) -> str:
    """The mark that ends sentences in this text's script."""
    return "。" if "。" in text else "."


def draw_sentences(pool: Sequence[str], letters: float, draw: random.Random) -> str:
    """Sentences in random order until the next one would lead further away from the wanted number of letters."""
    text = ""
    while True:
        longer = (text + " " + draw.choice(pool)).strip()
        if text and abs(len(longer) - letters) >= abs(len(text) - letters):
            return text
        text = longer


def letters_per_second(speaker: Speaker, pool: Sequence[str]) -> float:
    """How fast this voice reads, measured on the last sentences of the pool."""
    text = " ".join(pool[-3:])
    return len(text) / (len(speak(speaker, text)) / SAMPLE_RATE)


def speak(speaker: Speaker, text: str, words_per_minute: int | None = None) -> Samples:
    """Read ``text`` aloud: float32 at 16 kHz, silence at the ends cut to a short margin."""
    command = ["espeak-ng", "-v", speaker.voice, "-s", str(words_per_minute or speaker.words_per_minute)]
    done = subprocess.run([*command, "--stdout", "--stdin"], input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise StorageError(f"espeak-ng failed on voice {speaker.voice}: {done.stderr.decode().strip()}")
    # The header of piped WAV states no true length: 44 bytes, then mono int16 to the end.
    rate = int.from_bytes(done.stdout[24:28], "little")
    spoken = np.frombuffer(done.stdout, dtype="<i2", offset=44).astype(np.float32) / 32768
    samples = np.asarray(soxr.resample(spoken, rate, SAMPLE_RATE), dtype=np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.005)
    margin = round(MARGIN_SECONDS * SAMPLE_RATE)
    samples = samples[max(0, loud[0] - margin) : loud[-1] + margin]
    # A quiet recording takes fewer bits as FLAC; this is the level of a far microphone.
    return samples * np.float32(0.06 / np.abs(samples).max())


def make_recording(folder: Path, speaker: Speaker, pool: Sequence[str]) -> list[Utterance]:
    """One long file of several sentences with pauses, and the utterances that are cut from it.

    Cuts fall on whole milliseconds, so that a time in seconds with three digits names exact samples.
    """
    millisecond = SAMPLE_RATE // 1000
    pieces: list[Samples] = []
    cuts: list[tuple[int, int]] = []
    position = 0
    texts = pool[: RECORDING_SENTENCES[speaker.name]]
    for text in texts:
        spoken = speak(speaker, text)
        pause = 400 * millisecond - len(spoken) % millisecond
        cuts.append((position, len(spoken) // millisecond * millisecond))
        pieces += [spoken, np.zeros(pause, np.float32)]
        position += len(spoken) + pause
    audio = write_audio(folder, speaker, "recording", np.concatenate(pieces), FLAC)
    return [
        Utterance(f"{speaker.name}-recording/{i}.{start // millisecond:06d}", speaker, text, audio, length, start)
        for i, ((start, length), text) in enumerate(zip(cuts, texts, strict=True))
    ]


def write_audio(folder: Path, speaker: Speaker, stem: str, samples: Samples, encoding: Encoding) -> str:
    """Encode one file; returns its path below ``folder``."""
    relative = f"audio/{speaker.folder}/{stem}.{encoding.extension}"
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, float | str] = {}
    if encoding.compression is not None:
        options["compression_level"] = encoding.compression
    if encoding is MP3:
        options["bitrate_mode"] = "VARIABLE"
    soundfile.write(path, samples, SAMPLE_RATE, format=encoding.container, subtype=encoding.subtype, **options)
    return relative


def count_samples(path: Path) -> int:
    """Samples that the file decodes to; lossy codecs need not give back as many as they were given."""
    return len(soundfile.read(path, dtype="float32")[0])


def write_manifest(path: Path, utterances: Sequence[Utterance]) -> None:
    """The JSONL form: paths relative to the manifest; ``offset`` only where a file is cut."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for utterance in utterances:
            row: dict[str, object] = {
                "id": utterance.key,
                "audio_filepath": utterance.audio,
                "duration": utterance.num_samples / SAMPLE_RATE,
                "text": utterance.text,
                "speaker": utterance.speaker.name,
                "language": utterance.speaker.language,
            }
            if utterance.offset_samples is not None:
                row["offset"] = utterance.offset_samples / SAMPLE_RATE
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_kaldi(folder: Path, utterances: Sequence[Utterance]) -> None:
    """The Kaldi form. Where there is a segments file, Kaldi takes utterances from it alone, so all are in it;
    `0 -1` (Kaldi's word for "to the end") marks those that are a whole file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, dict[str, str]] = {
        "wav.scp": {utterance.recording: f"../{utterance.audio}" for utterance in utterances},
        "segments": {utterance.key: segment(utterance) for utterance in utterances},
        "text": {utterance.key: utterance.text for utterance in utterances},
        "utt2spk": {utterance.key: utterance.speaker.name for utterance in utterances},
        "utt2dur": {utterance.key: f"{utterance.num_samples / SAMPLE_RATE}" for utterance in utterances},
        "utt2lang": {utterance.key: utterance.speaker.language for utterance in utterances},
    }
    for name, rows in tables.items():
        lines = [f"{key} {value}\n" for key, value in sorted(rows.items())]
        (folder / name).write_text("".join(lines), encoding="utf-8", newline="\n")


def segment(utterance: Utterance) -> str:
    """Recording, start and end in seconds, as segments has them after the id."""
    if utterance.offset_samples is None:
        return f"{utterance.recording} 0 -1"
    end = utterance.offset_samples + utterance.num_samples
    return f"{utterance.recording} {utterance.offset_samples / SAMPLE_RATE:.3f} {end / SAMPLE_RATE:.3f}"


if __name__ == "__main__":
    sys.exit(main())
