"""SASL EXTERNAL: which user a client certificate stands for (SEC-6).

The TLS library has verified the certificate; here only names are taken from it, as RabbitMQ's
rabbitmq_auth_mechanism_ssl does: the distinguished name in the form of RFC 2253, or the common
name.  Used by client_login.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd.server.access.auth import USER_BYTES_MAX

#: One relative name: (attribute, value) pairs, as ssl's getpeercert has them.
Rdn = Sequence[tuple[str, str]]

_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "givenName": "GIVENNAME",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
_ESCAPED = frozenset(',+"\\<>;')


def user_of(subject: Iterable[Rdn], login_from: str) -> str | None:
    """Return the user's name, None if the certificate has none that could be one."""
    rdns = list(subject)
    if login_from == "common_name":
        names = [value for rdn in rdns for kind, value in rdn if kind == "commonName"]
        # Several are joined, as RabbitMQ does.
        found = ",".join(names)
    else:
        found = ",".join("+".join(_pair(*item) for item in rdn) for rdn in reversed(rdns))
    size = len(found.encode("utf-8", "surrogateescape"))
    return found if 0 < size <= USER_BYTES_MAX else None


def _pair(kind: str, value: str) -> str:
    return f"{_SHORT_NAMES.get(kind, kind)}={_escape(value)}"


def _escape(value: str) -> str:
    """RFC 2253 section 2.4."""
    escaped = "".join(f"\\{char}" if char in _ESCAPED else char for char in value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if len(value) > 1 and escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return escaped
