"""The management API's door: whose changes are made."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from brokerd.server.management.call import HttpError
from brokerd.server.management.door import check_origin
from brokerd.server.management.login import is_from_afar

HOST = {"Host": "mq.example:15672"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://mq.example:15672"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://mq.example:15672"},
        # Typed into the browser, or from a bookmark.
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_changes_of_programs_and_of_our_own_pages_are_made(headers: dict[str, str]) -> None:
    check_origin(CIMultiDict(HOST | headers))


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://mq.example:15673"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://mq.example:15672"},
        {"Sec-Fetch-Site": "nonsense"},
    ],
)
def test_a_change_that_another_sites_page_asks_for_is_not_made(headers: dict[str, str]) -> None:
    """SEC: browsers send the Basic credentials that they remember along with any page's form."""
    with pytest.raises(HttpError) as caught:
        check_origin(CIMultiDict(HOST | headers))
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost:15672"},
        {"Host": "LOCALHOST"},
        {"Host": "127.0.0.1:15672"},
        {"Host": "[::1]:15672"},
        {"Host": "10.0.0.7"},
    ],
)
def test_a_request_by_an_address_or_localhost_may_be_this_machines(headers: dict[str, str]) -> None:
    assert not is_from_afar(CIMultiDict(headers))


@pytest.mark.parametrize(
    "headers",
    [
        # A name that its owner lets resolve to 127.0.0.1, with the page's own origin.
        {"Host": "rebound.example:15672", "Origin": "http://rebound.example:15672"},
        {"Host": "localhost.example"},
        {"Host": "127.0.0.1.example"},
        {"Host": "["},
        {"Host": "localhost", "X-Forwarded-For": "192.0.2.7"},
        {"Host": "127.0.0.1", "forwarded": "for=192.0.2.7"},
        {"Host": "127.0.0.1", "Via": "1.1 proxy"},
    ],
)
def test_a_request_by_another_name_or_by_a_proxy_is_no_request_of_this_machine(
    headers: dict[str, str],
) -> None:
    """SEC: users who are let in from loopback alone are not let in by it."""
    assert is_from_afar(CIMultiDict(headers))
