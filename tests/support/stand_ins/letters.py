"""The mail of a query whose letters a test reads."""

from __future__ import annotations

from timerheap.spark._worker.driver_mail import Letter, Mail, Tally


class Mailbox(Mail):
    """Keeps the texts of the letters that are sent, as `warnings`."""

    def __init__(self) -> None:
        super().__init__(self, "session", "owner")  # type: ignore[arg-type]
        self.warnings: list[str] = []

    def add(self, letters: tuple[Letter, ...]) -> None:
        """Receive letters, as an accumulator does."""
        for letter in letters:
            if isinstance(letter.content, str):
                self.warnings.append(letter.content)
            elif isinstance(letter.content, Tally):
                self.warnings.append(letter.content.text)
