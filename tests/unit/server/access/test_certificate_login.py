"""Names in client certificates, as users (SEC-6)."""

from __future__ import annotations

import pytest

from brokerd.server.access.certificate_login import user_of

SUBJECT = ((("countryName", "DE"),), (("organizationName", "a"),), (("commonName", "shop"),))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (SUBJECT, "CN=shop,O=a,C=DE"),
        (((("commonName", 'a,b+c"d\\e<f>g;h'),),), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        (((("commonName", "#x "),),), "CN=\\#x\\ "),
        (((("commonName", " "),),), "CN=\\ "),
        (((("commonName", "x"), ("userId", "7")),), "CN=x+UID=7"),
        (((("1.2.3.4", "x"),),), "1.2.3.4=x"),
    ],
)
def test_a_distinguished_name_is_written_as_in_rfc_2253(subject: object, name: str) -> None:
    """SEC-6: as RabbitMQ and `openssl x509 -nameopt RFC2253` write it."""
    assert user_of(subject, "distinguished_name") == name  # type: ignore[arg-type]


def test_the_common_name_is_taken_alone() -> None:
    """SEC-6: several are joined."""
    assert user_of(SUBJECT, "common_name") == "shop"
    assert user_of((*SUBJECT, (("commonName", "two"),)), "common_name") == "shop,two"


@pytest.mark.parametrize("login_from", ["distinguished_name", "common_name"])
def test_a_name_that_no_user_can_have_is_none(login_from: str) -> None:
    """R-NAM-1: no name, or one of more than 255 bytes."""
    assert user_of((), login_from) is None
    assert user_of(((("commonName", "x" * 256),),), login_from) is None


def test_a_certificate_without_a_common_name_stands_for_nobody() -> None:
    """SEC-6."""
    assert user_of(((("organizationName", "a"),),), "common_name") is None
