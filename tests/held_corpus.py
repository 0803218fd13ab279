"""A corpus whose packing waits: so a job can be killed at any stage of it, however slow or fast the machine is."""

from pathlib import Path

from corpora import write_audio

_COMMAND = """
# Probing goes on. A worker that is killed must not leave this behind.
while [ -n "$HOLD" ] && [ -e "$HOLD/.uttershard/job.json" ] && [ ! -e "$HOLD.open" ] && kill -0 $PPID 2>&1
do sleep 0.02
done > /dev/null
exec cat "$1"
"""


def held_corpus(folder: Path, utterances: int, seconds: float, ending: str = "flac") -> Path:
    """Write files of growing length and a Kaldi directory of them, the last of which is a command.

    Where the variable HOLD names the target, the command waits once there is a plan, until a file `<target>.open` is
    there: one worker stands still in the middle of a shard, the others go on with all other shards. Pack it with
    `allow_pipes`.
    """
    script = folder / "held.sh"
    entries = []
    for number in range(utterances):
        name = f"utt{number:03d}"
        audio = write_audio(folder / "audio" / f"{name}.{ending}", seconds * (1 + number / utterances), seed=number)
        entries.append((name, str(audio) if number + 1 < utterances else f"exec sh {script} {audio} |"))
    script.write_text(_COMMAND)
    corpus = folder / "kaldi"
    corpus.mkdir()
    (corpus / "wav.scp").write_text("".join(f"{name} {audio}\n" for name, audio in entries))
    (corpus / "text").write_text("".join(f"{name} text of {name}\n" for name, _ in entries))
    return corpus
