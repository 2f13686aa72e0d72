"""Why a filter is refused, and where in its text.  For each door that takes a filter."""

from __future__ import annotations

#: Characters of the filter's text shown before and behind the place.
SHOWN_BEFORE = 40
SHOWN_BEHIND = 30


class FilterError(ValueError):
    """A filter's text is refused; the message ends with what to do."""

    def __init__(self, message: str, position: int, text: str) -> None:
        super().__init__(f"filter, character {position + 1}: {message}")
        self.message = message
        #: Characters before the place, from 0; that of the end where something is missing.
        self.position = position
        self._text = text

    def excerpt(self) -> str:
        """Return the text around the place and a caret below it, in two lines.

        What a terminal would not print as one character is a question mark.
        """
        start = max(0, self.position - SHOWN_BEFORE)
        part = self._text[start : self.position + SHOWN_BEHIND]
        shown = "".join(c if c.isprintable() else "?" for c in part)
        return f"{shown}\n{' ' * (self.position - start)}^"
