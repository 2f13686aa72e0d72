"""Where passwords may be sent in the clear (SEC-7)."""

from __future__ import annotations

import pytest

from brokerd.config import BrokerConfig, load
from tests.unit.server.access.fakes import authenticator

HERE, ELSEWHERE = "127.0.0.1", "10.0.0.7"


@pytest.mark.parametrize(
    ("rule", "tls", "address", "expected"),
    [
        ("allow", False, ELSEWHERE, True),
        ("loopback", False, HERE, True),
        ("loopback", False, "::1", True),
        ("loopback", False, ELSEWHERE, False),
        ("loopback", True, ELSEWHERE, True),
        ("deny", False, HERE, False),
        ("deny", True, ELSEWHERE, True),
    ],
)
def test_who_may_send_a_password(rule: str, tls: bool, address: str, expected: bool) -> None:
    """SEC-7: TLS always; without it as the setting says."""
    config = load(None, {"BROKERD_AUTH_PASSWORDS_WITHOUT_TLS": rule}, {})
    assert authenticator(settings=config.auth).may_send_password(tls, address) is expected


def test_by_default_passwords_are_taken_everywhere() -> None:
    """The operator turns the plain listener off instead (tls.disablePlain)."""
    assert BrokerConfig().auth.passwords_without_tls == "allow"
