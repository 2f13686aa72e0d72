"""brokerd/secret_files.py: what a file of a password may hold, and what is said of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd import secret_files
from brokerd.secret_files import SecretFileError


@pytest.mark.parametrize(
    ("data", "secret"),
    [
        (b"secret", "secret"),
        (b"secret\n", "secret"),
        # From Windows.
        (b"\xef\xbb\xbfsecret\r\n", "secret"),
        (b" a b \n", " a b "),
        ("pässwörd\n".encode(), "pässwörd"),
        (b"x" * 4096, "x" * 4096),
    ],
)
def test_a_secret_is_the_line_of_its_file(tmp_path: Path, data: bytes, secret: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(data)
    assert secret_files.read(file) == secret


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfes\0e\0", "no UTF-8 text"),
        (b"a\0b", "control characters"),
        (b"user\npassword\n", "several lines"),
        (b"x" * 4097, "more than 4096 bytes"),
    ],
)
def test_a_file_that_holds_no_secret_is_named_with_what_is_wrong(
    tmp_path: Path, data: bytes, text: str
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(data)
    with pytest.raises(SecretFileError, match=f"^cannot use {file}: .*{text}"):
        secret_files.read(file)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(SecretFileError, match=f"cannot read {tmp_path}: Is a directory"):
        secret_files.read(tmp_path)
    with pytest.raises(SecretFileError, match="No such file"):
        secret_files.read(tmp_path / "none")
    # They have no end.
    for device in ("/dev/zero", "/dev/urandom"):
        with pytest.raises(SecretFileError, match="more than 4096 bytes"):
            secret_files.read(Path(device))
    with pytest.raises(SecretFileError, match="is empty"):
        secret_files.read(Path("/dev/null"))
