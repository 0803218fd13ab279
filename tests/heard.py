"""A progress that remembers what it was told."""

from uttershard.writers.progress import Done, Silent


class Heard(Silent):
    """Counts retries and keeps notes."""

    def __init__(self) -> None:
        self.retries = 0
        self.notes: list[str] = []

    def advance(self, done: Done) -> None:
        self.retries += done.retries

    def note(self, message: str) -> None:
        self.notes.append(message)
