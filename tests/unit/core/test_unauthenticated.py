"""Who makes room among connections without a login (SEC-34)."""

from __future__ import annotations

from brokerd.core.unauthenticated import Unauthenticated


def filled(places: int, per_address: int, *present: str) -> Unauthenticated[str]:
    """Return a door before which strangers stand, named by address and number: "a1"."""
    unauthenticated: Unauthenticated[str] = Unauthenticated(places, per_address)
    for name in present:
        assert unauthenticated.admit(name, name[0]) is None
    return unauthenticated


def test_the_oldest_of_an_address_with_its_share_makes_room() -> None:
    unauthenticated = filled(10, 2, "a1", "b1", "a2")
    assert unauthenticated.admit("a3", "a") == "a1"
    assert unauthenticated.admit("a4", "a") == "a2"
    assert unauthenticated.all() == ["b1", "a3", "a4"]


def test_whoever_is_gone_or_inside_gives_the_place_back() -> None:
    unauthenticated = filled(10, 2, "a1", "a2")
    unauthenticated.gone("a1")
    unauthenticated.gone("a1")
    assert unauthenticated.admit("a3", "a") is None
    unauthenticated.logged_in("a1")
    assert unauthenticated.all() == ["a2", "a3"]


def test_the_address_with_most_places_makes_room_for_others() -> None:
    """Two that flood share what there is; a third one always comes in."""
    unauthenticated = filled(5, 3, "a1", "a2", "a3", "b1", "b2")
    assert unauthenticated.admit("c1", "c") == "a1"
    assert unauthenticated.admit("c2", "c") == "a2"
    # By now it has as many as anybody else.
    assert unauthenticated.admit("c3", "c") == "c1"
    assert unauthenticated.all() == ["a3", "b1", "b2", "c2", "c3"]


def test_an_address_that_has_most_itself_makes_room_for_its_own() -> None:
    unauthenticated = filled(3, 3, "a1", "a2", "b1")
    assert unauthenticated.admit("a3", "a") == "a1"


def test_many_addresses_with_one_place_each_make_room_for_one_more() -> None:
    unauthenticated = filled(3, 3, "a1", "b1", "c1")
    assert unauthenticated.admit("d1", "d") == "a1"


def test_who_has_logged_in_gives_way_last_and_never_to_its_own_address() -> None:
    unauthenticated = filled(4, 2, "a1", "a2", "b1", "b2")
    unauthenticated.logged_in("a1")
    unauthenticated.logged_in("a1")
    assert unauthenticated.admit("a3", "a") == "a2"
    unauthenticated.logged_in("a3")
    assert unauthenticated.admit("a4", "a") == "a4"
    assert unauthenticated.admit("c1", "c") == "a1"
    assert unauthenticated.all() == ["b1", "b2", "a3", "c1"]


def test_nobody_comes_in_where_all_places_are_of_the_same_address_and_known() -> None:
    unauthenticated = filled(2, 5, "a1", "a2")
    for known in ("a1", "a2"):
        unauthenticated.logged_in(known)
    assert unauthenticated.admit("a3", "a") == "a3"
    assert len(unauthenticated) == 2


def test_half_open_sockets_of_two_addresses_keep_nobody_out() -> None:
    """520 each, as they were tried; then 44 others, and more of the same addresses."""
    unauthenticated: Unauthenticated[tuple[str, int]] = Unauthenticated(1000, 500)
    for number in range(520):
        for address in ("a", "b"):
            assert unauthenticated.admit((address, number), address) != (address, number)
    for number in range(44):
        for address in ("c", "d", "a"):
            newcomer = address, 1000 + number
            displaced = unauthenticated.admit(newcomer, address)
            assert displaced is not None
            assert displaced[0] in ("a", "b")
            assert displaced[1] < 520
    assert len(unauthenticated.all()) == 1000


def test_who_does_what_was_asked_of_it_goes_after_the_others() -> None:
    unauthenticated = filled(10, 2, "a1", "a2")
    unauthenticated.renew("a1")
    unauthenticated.renew("nobody")
    assert unauthenticated.admit("a3", "a") == "a2"
    assert unauthenticated.all() == ["a1", "a3"]


def test_of_many_addresses_with_one_place_each_the_one_longest_without_a_sign_goes() -> None:
    unauthenticated = filled(3, 3, "a1", "b1", "c1")
    unauthenticated.renew("a1")
    assert unauthenticated.admit("d1", "d") == "b1"


def test_who_has_logged_in_remains_so_when_it_shows_itself_again() -> None:
    unauthenticated = filled(10, 2, "a1", "a2")
    unauthenticated.logged_in("a1")
    unauthenticated.renew("a1")
    assert unauthenticated.admit("a3", "a") == "a2"
    assert unauthenticated.admit("a4", "a") == "a3"


def test_where_the_port_is_full_unauthenticated_of_the_largest_address_make_room() -> None:
    """Not those who are inside, whom nobody knows here."""
    unauthenticated = filled(10, 10, "a1", "a2", "b1")
    assert unauthenticated.admit("c1", "c", is_full=True) == "a1"
    for inside in ("a2", "b1", "c1"):
        unauthenticated.gone(inside)
    assert unauthenticated.admit("d1", "d", is_full=True) == "d1"
    assert len(unauthenticated) == 0


def test_where_the_share_of_an_address_is_taken_only_its_own_unauthenticated_make_room() -> None:
    unauthenticated = filled(10, 10, "a1", "b1", "b2")
    assert unauthenticated.admit("a2", "a", is_share_taken=True) == "a1"
    assert unauthenticated.admit("c1", "c", is_full=True, is_share_taken=True) == "c1"
    assert unauthenticated.all() == ["b1", "b2", "a2"]


def test_a_network_of_ipv6_is_one_address_on_every_port() -> None:
    """Whoever has one address of it has all 2^64."""
    unauthenticated: Unauthenticated[str] = Unauthenticated(10, 2)
    for number in range(2):
        assert unauthenticated.admit(f"a{number}", f"2001:db8::{number}") is None
    assert unauthenticated.admit("b", "2001:db8:0:1::1") is None
    assert unauthenticated.admit("a2", "2001:db8::ffff%eth0") == "a0"
    assert unauthenticated.admit("a3", "2001:db8::/64") == "a1"


def test_an_ipv4_address_is_the_same_one_on_a_socket_of_both_families() -> None:
    unauthenticated: Unauthenticated[str] = Unauthenticated(10, 1)
    assert unauthenticated.admit("a1", "192.0.2.1") is None
    assert unauthenticated.admit("a2", "::ffff:192.0.2.1") == "a1"
