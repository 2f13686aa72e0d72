"""Another broker that a resource names: a Secret with URIs, or endpoints with a login. PURE.

For the kinds whose links dial it (FederationUpstream, Shovel).
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import regex

from brokerd_operator.specs.model import Inputs, Invalid, Meta, Part, Reference, SecretRef, Waiting

#: URIs of one broker; every connection attempt takes one of them at random.
URIS_MAX = 64

#: PEM of all authorities of one broker; the broker takes no more.
AUTHORITIES_CHARACTERS_MAX = 65_536
_CERTIFICATE = regex.compile(
    rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----"
)

_PORTS = {False: 5672, True: 5671}


class UriSecretRef(Part):
    """A key of a Secret."""

    name: str
    key: str = "uri"


class CaSecretRef(Part):
    """A key of a Secret with certificates of authorities."""

    name: str
    key: str = "ca.crt"


class RemoteTls(Part):
    """Who may have signed the broker's certificate."""

    ca_secret_ref: CaSecretRef


class ClusterRef(Part):
    """A BrokerCluster of the same namespace."""

    name: str


class Endpoint(Part):
    """One place where the broker is reached."""

    cluster_ref: ClusterRef | None = None
    host: str | None = None
    port: int | None = None
    tls: bool = False
    vhost: str | None = None


class Remote(Part):
    """Where the broker is, who logs in, and which authorities are trusted."""

    uri_secret_ref: UriSecretRef | None = None
    endpoints: tuple[Endpoint, ...] = ()
    credentials_secret_ref: SecretRef | None = None
    tls: RemoteTls | None = None

    def remote_references(self, meta: Meta) -> list[Reference]:
        """Everything that is named; some of it more than once."""
        found = []
        if self.uri_secret_ref is not None:
            found.append(Reference("Secret", meta.namespace, self.uri_secret_ref.name))
        if self.credentials_secret_ref is not None:
            found.append(Reference("Secret", meta.namespace, self.credentials_secret_ref.name))
        if self.tls is not None:
            found.append(Reference("Secret", meta.namespace, self.tls.ca_secret_ref.name))
        for item in self.endpoints:
            if item.cluster_ref is not None:
                found.append(Reference("BrokerCluster", meta.namespace, item.cluster_ref.name))
        return found

    def remote_uris(
        self, meta: Meta, inputs: Inputs, vhost: str | None = None
    ) -> list[str] | Invalid | Waiting:
        """Where the broker is; `vhost` is that of endpoints which name none."""
        if self.uri_secret_ref is not None:
            return uris_of_secret(self.uri_secret_ref, meta, inputs)
        return self._uris_of_endpoints(meta, inputs, vhost)

    def _uris_of_endpoints(
        self, meta: Meta, inputs: Inputs, vhost: str | None
    ) -> list[str] | Invalid | Waiting:
        credentials = self._credentials(meta, inputs)
        if isinstance(credentials, Invalid | Waiting):
            return credentials
        uris: list[str] = []
        for item in self.endpoints:
            if item.cluster_ref is None:
                if credentials is None or item.host is None:
                    return Invalid(
                        "InvalidSpec", "an endpoint needs a host and credentialsSecretRef"
                    )
                address = _address(item.host, item.port or _PORTS[item.tls])
                uris.append(_uri(address, item.tls, credentials, item.vhost or vhost))
                continue
            cluster = inputs.clusters.get(f"{meta.namespace}/{item.cluster_ref.name}")
            if cluster is None or not cluster.endpoints:
                return Waiting(
                    "WaitingForUpstream", f"BrokerCluster {item.cluster_ref.name} has no address"
                )
            login = credentials or (cluster.username, cluster.password)
            uris += [
                _uri(address, cluster.is_tls, login, item.vhost or vhost)
                for address in cluster.endpoints
            ]
        return uris[:URIS_MAX] or Invalid("InvalidSpec", "neither uriSecretRef nor endpoints")

    def authorities(self, meta: Meta, inputs: Inputs) -> str | Invalid | Waiting | None:
        """PEM of the Secret's certificates and of what signed for the clusters that are named;
        None if there are none: the broker trusts those of its system.
        """
        found: list[str] = []
        if self.tls is not None:
            secret, key = self.tls.ca_secret_ref.name, self.tls.ca_secret_ref.key
            data = inputs.secrets.get(f"{meta.namespace}/{secret}")
            if data is None:
                return Waiting("WaitingForSecret", f"Secret {secret} does not exist")
            if key not in data:
                return Waiting("WaitingForSecret", f"Secret {secret} has no key {key}")
            found = _certificates(data[key])
            if not found:
                return Invalid("InvalidSpec", f"Secret {secret}: {key} holds no certificate in PEM")
        for item in self.endpoints:
            if item.cluster_ref is not None:
                cluster = inputs.clusters.get(f"{meta.namespace}/{item.cluster_ref.name}")
                if cluster is not None and cluster.is_tls:
                    found += _certificates(cluster.authorities)
        text = "".join(dict.fromkeys(found))
        if len(text) > AUTHORITIES_CHARACTERS_MAX:
            return Invalid(
                "InvalidSpec",
                f"the certificates of authorities have {len(text)} characters, at most "
                f"{AUTHORITIES_CHARACTERS_MAX} are possible",
            )
        return text or None

    def _credentials(
        self, meta: Meta, inputs: Inputs
    ) -> tuple[str, str] | Invalid | Waiting | None:
        if self.credentials_secret_ref is None:
            return None
        secret = self.credentials_secret_ref.name
        data = inputs.secrets.get(f"{meta.namespace}/{secret}")
        if data is None:
            return Waiting("WaitingForSecret", f"Secret {secret} does not exist")
        if "username" not in data or "password" not in data:
            return Waiting("WaitingForSecret", f"Secret {secret} needs username and password")
        try:
            return data["username"].decode(), data["password"].decode()
        except UnicodeDecodeError:
            return Invalid("InvalidSpec", f"Secret {secret} is not UTF-8")


def uris_of_secret(
    reference: UriSecretRef, meta: Meta, inputs: Inputs
) -> list[str] | Invalid | Waiting:
    """The URIs that a key of a Secret holds."""
    secret, key = reference.name, reference.key
    data = inputs.secrets.get(f"{meta.namespace}/{secret}")
    if data is None:
        return Waiting("WaitingForSecret", f"Secret {secret} does not exist")
    if key not in data:
        return Waiting("WaitingForSecret", f"Secret {secret} has no key {key}")
    try:
        text = data[key].decode()
    except UnicodeDecodeError:
        return Invalid("InvalidSpec", f"Secret {secret}: {key} is not UTF-8")
    uris = [part.strip() for part in text.replace(",", "\n").splitlines() if part.strip()]
    if not uris or len(uris) > URIS_MAX or not all(_is_amqp_uri(uri) for uri in uris):
        return Invalid(
            "InvalidSpec",
            f"Secret {secret}: {key} must hold 1 to {URIS_MAX} amqp:// or amqps:// URIs",
        )
    return uris


def _certificates(pem: bytes) -> list[str]:
    """The certificates of a bundle and nothing else of it: a private key beside them must not get
    into the broker, where definitions are listed.
    """
    return [block.decode() + "\n" for block in _CERTIFICATE.findall(pem)]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _uri(address: str, is_tls: bool, login: tuple[str, str], vhost: str | None) -> str:
    """An AMQP URI. Without a vhost the broker takes the downstream's (R-FED-2)."""
    scheme = "amqps" if is_tls else "amqp"
    user, password = (quote(part, safe="") for part in login)
    path = "" if vhost is None else "/" + quote(vhost, safe="")
    return f"{scheme}://{user}:{password}@{address}{path}"


def _is_amqp_uri(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.scheme in ("amqp", "amqps") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
