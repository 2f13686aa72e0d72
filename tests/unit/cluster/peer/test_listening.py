"""Where a member listens for its peers."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest

from brokerd.cluster.peer import listening


@contextlib.contextmanager
def listen(address: str) -> Iterator[list[socket.socket]]:
    found = listening.listen(address)
    try:
        yield found
    finally:
        for each in found:
            each.close()


def reaches(port: int) -> bool:
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=60)):
        return True


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0", ":0"])
def test_all_addresses_of_a_name_share_one_port(address: str) -> None:
    with listen(address) as found:
        ports = {each.getsockname()[1] for each in found}
        assert len(ports) == 1
        assert reaches(ports.pop())


def test_any_address_means_ipv4_where_there_is_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = listening._open

    def without_ipv6(family: int, address: tuple[str | int, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return real(family, address)

    monkeypatch.setattr(listening, "_open", without_ipv6)
    with listen("[::]:0") as [found]:
        assert found.family == socket.AF_INET
    with pytest.raises(OSError, match="no such family"):
        listening.listen("[::1]:0")


def test_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    with listen("127.0.0.1:0") as [taken]:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listening.listen(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "x"])
def test_what_is_no_address_is_an_error(address: str) -> None:
    with pytest.raises(OSError, match="not an address"):
        listening.listen(address)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EADDRINUSE, "x"), "Address already in use; another broker may be running"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "; --bind (node.bind) must name an address of this"),
        (OSError(errno.EACCES, "x"), "Permission denied; ports below 1024 are the system's"),
        (OSError(errno.EMFILE, "x"), "Too many open files"),
        (OSError("not an address: 'x'"), "not an address: 'x'"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "; --bind (node.bind)"),
    ],
)
def test_a_reason_ends_with_what_to_do(error: OSError, words: str) -> None:
    assert words in listening.in_words(error)


def test_another_broker_is_not_suspected_of_a_name_that_does_not_resolve() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert "another broker" not in listening.in_words(unknown)
