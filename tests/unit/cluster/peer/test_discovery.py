"""Peer lists and addresses as people write them."""

from __future__ import annotations

import pytest

from brokerd.cluster.errors import AddressError
from brokerd.cluster.peer import discovery


def test_peer_list_is_read_with_names_ports_and_spaces() -> None:
    text = " a=host-a:1, b = host-b ,, c=[::1]:3,127.0.0.1:5 "
    assert discovery.parse_peers(text) == {
        "a": "host-a:1",
        "b": "host-b:5690",
        "c": "[::1]:3",
        "127.0.0.1": "127.0.0.1:5",
    }


@pytest.mark.parametrize(
    "text",
    [
        "a=",
        "=host",
        "a=host:0",
        "a=host:65536",
        "a=host:x",
        "a=host:-1",
        "a=::1",
        "a=[::1",
        "a=[::1]x",
        "a=h,a=i",
        "a b=host",
        "a=host:١",
        f"{'x' * 300}=host",
        ",".join(f"n{i}=h" for i in range(65)),
    ],
)
def test_wrong_peer_list_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        discovery.parse_peers(text)


def test_addresses_come_back_as_they_were_written() -> None:
    for text in ("host:1", "[fe80::1]:5690"):
        assert discovery.format_address(*discovery.parse_address(text)) == text


async def test_loopback_resolves_and_nonsense_does_not() -> None:
    assert await discovery.resolve("127.0.0.1:1") == ["127.0.0.1"]
    assert await discovery.resolves("localhost:1")
    assert not await discovery.resolves("no-such-host.invalid:1")
    assert not await discovery.resolves(f"{'x' * 300}:1")
