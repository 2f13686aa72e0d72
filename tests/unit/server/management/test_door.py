"""The management API's door: whose changes are made."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from brokerd.server.management.call import HttpError
from brokerd.server.management.door import check_origin

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
