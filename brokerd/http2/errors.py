"""The error of the room."""

from __future__ import annotations


class Http2Error(Exception):
    """The other side broke HTTP/2 or one of our bounds; `code` goes into GOAWAY."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
