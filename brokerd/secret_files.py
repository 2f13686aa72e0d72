"""Reads files that hold a secret: passwords, tokens, keys.

For the broker, brokerctl and the telemetry job. A named file may be a device, a directory or
another file by mistake: each is a SecretFileError that says so, and no more than a bound is read.
"""

from __future__ import annotations

from pathlib import Path

#: Of a password or token; the longest tokens of issuers in use have about 3000.
SECRET_BYTES_MAX = 4096


class SecretFileError(ValueError):
    """The file holds no secret; the text names the file and says what is wrong with it."""


def read(file: Path) -> str:
    """Return the one line that a file holds, without its line end."""
    data = read_bounded(file, SECRET_BYTES_MAX)
    try:
        # Editors of Windows begin a file with a byte order mark, and end lines with two characters.
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SecretFileError(f"cannot use {file}: it is no UTF-8 text, so no password") from error
    if not text:
        raise SecretFileError(f"cannot use {file}: it is empty; write the password into it")
    if any(character < " " for character in text):
        raise SecretFileError(
            f"cannot use {file}: it has several lines or control characters; "
            "it must hold the password alone"
        )
    return text


def read_bounded(file: Path, bytes_max: int) -> bytes:
    """Return what a file holds; SecretFileError if it cannot be read or holds more."""
    try:
        with file.open("rb") as source:
            data = source.read(bytes_max + 1)
    except OSError as error:
        raise SecretFileError(f"cannot read {file}: {error.strerror}") from error
    if len(data) > bytes_max:
        raise SecretFileError(f"cannot use {file}: it holds more than {bytes_max} bytes")
    return data
