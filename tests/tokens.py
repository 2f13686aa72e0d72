"""A test issuer of tokens: its own keys, its JWKS on loopback, and a switch to be away."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

#: What the tests' brokers are called at the issuer.
RESOURCE = "brokerd"
_KINDS: dict[str, Any] = {
    "RS256": jwt.algorithms.RSAAlgorithm,
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}


def private_key(algorithm: str) -> Any:
    """Make a key."""
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


class TestIssuer:
    """Keys by id, and tokens signed with them."""

    __test__ = False

    def __init__(self, algorithm: str = "RS256") -> None:
        self.keys: dict[str, tuple[str, Any]] = {}
        self.is_away = False
        self.asked = 0
        self.url = ""
        #: What the issuer is sent to authenticate the broker.
        self.authorizations: list[str | None] = []
        self.add_key("k1", algorithm)

    def add_key(self, key_id: str, algorithm: str = "RS256") -> None:
        """Publish one more key."""
        self.keys[key_id] = algorithm, private_key(algorithm)

    def pem(self, key_id: str = "k1") -> bytes:
        """Return a public key."""
        public = self.keys[key_id][1].public_key()
        return bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def jwks(self) -> bytes:
        """Return the published keys."""
        entries = []
        for key_id, (algorithm, key) in self.keys.items():
            entry = json.loads(_KINDS[algorithm].to_jwk(key.public_key()))
            entries.append({**entry, "kid": key_id, "use": "sig", "alg": algorithm})
        return json.dumps({"keys": entries}).encode()

    def token(self, *scopes: str, key_id: str = "k1", seconds: float = 600, **claims: Any) -> str:
        """Return a token; a claim of None is left out."""
        now = time.time()
        made = {
            "iss": self.url,
            "sub": "till",
            "aud": RESOURCE,
            "exp": int(now + seconds),
            "iat": int(now),
            "scope": [f"{RESOURCE}.{scope}" for scope in scopes],
        }
        left = {name: value for name, value in (made | claims).items() if value is not None}
        algorithm, key = self.keys[key_id]
        return jwt.encode(left, key, algorithm, headers={"kid": key_id})

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Publish the keys on loopback; the value is their URL."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.authorizations.append(self.headers.get("Authorization"))
                if issuer.is_away:
                    self.send_error(503)
                    return
                body = issuer.jwks()
                if self.path.endswith("/openid-configuration"):
                    body = json.dumps({"jwks_uri": issuer.url + "/keys"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self.url + "/keys"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
