"""A progress that remembers what it was told."""

from uttershard.writers.progress import Silent


class Heard(Silent):
    """Counts retries and keeps notes."""

    def __init__(self) -> None:
        self.retries = 0
        self.notes: list[str] = []

    def advance(
        self, *, utterances: int = 0, seconds: float = 0.0, nbytes: int = 0, refused: int = 0, retries: int = 0
    ) -> None:
        self.retries += retries

    def note(self, message: str) -> None:
        self.notes.append(message)
