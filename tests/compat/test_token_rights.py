"""What a token may do, at RabbitMQ with its OAuth 2 plugin and at brokerd with the same issuer.

One list of scopes and requests for both; the outcomes must be the same.  Nodes of their own, since
the others know no issuer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.compat.brokerd_server import ENVIRONMENT
from tests.integration.members import cluster
from tests.rabbitmq_node import OAUTH2, rabbit_node
from tests.tokens import RESOURCE, TestIssuer

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def issuer() -> TestIssuer:
    return TestIssuer()


@pytest.fixture(scope="module")
def ports(issuer: TestIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The AMQP ports of both servers by their names."""
    folder = tmp_path_factory.mktemp("tokens")
    key = folder / "k1.pem"
    key.write_bytes(issuer.pem())
    settings = (
        "auth_backends.1 = rabbit_auth_backend_oauth2",
        "auth_backends.2 = internal",
        f"auth_oauth2.resource_server_id = {RESOURCE}",
        f"auth_oauth2.signing_keys.k1 = {key}",
        "auth_oauth2.default_key = k1",
    )
    own = {
        "BROKERD_OAUTH2_RESOURCE_SERVER_ID": RESOURCE,
        "BROKERD_OAUTH2_SIGNING_KEYS": f'{{"k1": "{key}"}}',
        # RabbitMQ 3.10's order.
        "BROKERD_OAUTH2_PREFERRED_USERNAME_CLAIMS": "client_id sub",
    }
    with (
        rabbit_node(folder / "rabbitmq", OAUTH2, settings) as node,
        cluster(folder, 1, **ENVIRONMENT, **own) as [member],
    ):
        yield {"rabbitmq": node.amqp_port, "brokerd": member.amqp_port}


def outcome(port: int, user: str, token: str, request: Callable[[Any], object]) -> str:
    """Return how a request ends: ok, or the code of the refusal."""
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, credentials=pika.PlainCredentials(user, token)
    )
    try:
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            request(channel)
    except pika.exceptions.ProbableAuthenticationError:
        return "login"
    except pika.exceptions.ProbableAccessDeniedError:
        return "vhost"
    except (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker) as end:
        return str(end.reply_code)
    return "ok"


def declare(name: str) -> Callable[[Any], object]:
    return lambda channel: channel.queue_declare(name, exclusive=True)


def send(exchange: str, key: str, **properties: Any) -> Callable[[Any], object]:
    return lambda channel: channel.basic_publish(
        exchange, key, b"x", pika.BasicProperties(**properties)
    )


def bind(key: str) -> Callable[[Any], object]:
    def request(channel: Any) -> None:
        channel.queue_declare("q", exclusive=True)
        channel.queue_bind("q", "amq.topic", key)

    return request


def get(name: str) -> Callable[[Any], object]:
    def request(channel: Any) -> None:
        channel.queue_declare(name, exclusive=True)
        channel.basic_get(name)

    return request


#: Scopes, a request, and its outcome at both.
CASES: dict[str, tuple[tuple[str, ...], Callable[[Any], object], str]] = {
    "nothing": ((), declare("q"), "vhost"),
    "only a tag": (("tag:administrator",), declare("q"), "vhost"),
    "another vhost": (("configure:v/*",), declare("q"), "vhost"),
    "any vhost": (("configure:*/*",), declare("q"), "ok"),
    "the vhost's name": (("configure:%2F/*",), declare("q"), "ok"),
    "no slash": (("configure:*",), declare("q"), "vhost"),
    "four places": (("configure:*/*/*/*",), declare("q"), "vhost"),
    "three places": (("configure:*/*/*",), declare("q"), "ok"),
    "another right": (("read:*/*",), declare("q"), "403"),
    "a beginning": (("configure:*/q*",), declare("q1"), "ok"),
    "another beginning": (("configure:*/q*",), declare("p1"), "403"),
    "an end": (("configure:*/*-q",), declare("a-q"), "ok"),
    "an end, twice": (("configure:*/*-q",), declare("a-q-q"), "403"),
    "two stars": (("configure:*/a**",), declare("a"), "403"),
    "case": (("configure:*/Q",), declare("q"), "403"),
    "a star itself": (("configure:*/%2A",), declare("*"), "ok"),
    "a star that is none": (("configure:*/%2A",), declare("q"), "403"),
    "a slash": (("configure:*/a%2Fb",), declare("a/b"), "ok"),
    "a plus": (("configure:*/a+b",), declare("a b"), "ok"),
    "a broken escape": (("configure:*/a%zz", "read:*/*"), declare("a%zz"), "403"),
    "an upper-case right": (("CONFIGURE:*/*", "read:*/*"), declare("q"), "403"),
    "the default exchange": (("write:*/amq.default",), send("", "q"), "ok"),
    "not the default exchange": (("write:*/other",), send("", "q"), "403"),
    "an exchange": (("write:*/amq.*",), send("amq.direct", "k"), "ok"),
    "a topic without a key": (("write:*/*",), send("amq.topic", "k"), "403"),
    "a topic": (("write:*/*/*",), send("amq.topic", "k"), "ok"),
    "a key": (("write:*/*/eu.*",), send("amq.topic", "eu.a"), "ok"),
    "another key": (("write:*/*/eu.*",), send("amq.topic", "us.a"), "403"),
    "a key of a direct exchange": (("write:*/*/eu.*",), send("amq.direct", "us.a"), "ok"),
    "a binding": (("configure:*/*", "write:*/q", "read:*/amq.topic/k"), bind("k"), "ok"),
    "another binding": (("configure:*/*", "write:*/q", "read:*/amq.topic/k"), bind("j"), "403"),
    "a get": (("configure:*/*", "read:*/q"), get("q"), "ok"),
    "no get": (("configure:*/*", "read:*/p"), get("q"), "403"),
    "its own user": (("write:*/*",), send("", "q", user_id="till"), "ok"),
    "the client's user": (("write:*/*",), send("", "q", user_id="whoever"), "406"),
    "an impersonator": (("write:*/*", "tag:impersonator"), send("", "q", user_id="anna"), "ok"),
}


@pytest.mark.parametrize("case", CASES)
def test_scopes_give_the_same_rights(case: str, ports: dict[str, int], issuer: TestIssuer) -> None:
    scopes, request, expected = CASES[case]
    token = issuer.token(*scopes)
    found = {name: outcome(port, "whoever", token, request) for name, port in ports.items()}
    assert found == dict.fromkeys(ports, expected)


#: Claims, and what becomes of the login.
TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "as it is": ({}, "ok"),
    "an audience in a list": ({"aud": ["other", RESOURCE]}, "ok"),
    "an audience among words": ({"aud": f"other {RESOURCE}"}, "ok"),
    "another audience": ({"aud": "other"}, "login"),
    "expired": ({"exp": 1}, "login"),
    "scopes in words": ({"scope": f"{RESOURCE}.configure:*/* x"}, "ok"),
    "scopes of others": ({"scope": ["other.configure:*/*"]}, "vhost"),
    "scopes without a prefix": ({"scope": ["configure:*/*"]}, "vhost"),
    "a client's name": ({"client_id": "c"}, "ok"),
    "Keycloak": (
        {
            "scope": "openid",
            "authorization": {"permissions": [{"scopes": [f"{RESOURCE}.configure:*/*"]}]},
        },
        "ok",
    ),
}


@pytest.mark.parametrize("case", TOKENS)
def test_claims_are_read_the_same(case: str, ports: dict[str, int], issuer: TestIssuer) -> None:
    claims, expected = TOKENS[case]
    token = issuer.token("configure:*/*", **claims)
    found = {name: outcome(port, "", token, declare("q")) for name, port in ports.items()}
    assert found == dict.fromkeys(ports, expected)


def test_a_password_is_still_one(ports: dict[str, int]) -> None:
    for port in ports.values():
        assert outcome(port, "guest", "guest", declare("q")) == "ok"
        assert outcome(port, "guest", "wrong", declare("q")) == "login"


def test_a_new_secret_is_taken_or_ends_the_connection(
    ports: dict[str, int], issuer: TestIssuer
) -> None:
    """R-CON-13."""
    for port in ports.values():
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            port,
            credentials=pika.PlainCredentials("", issuer.token("configure:*/*")),
        )
        connection = pika.BlockingConnection(parameters)
        connection.update_secret(issuer.token("configure:*/*", seconds=900), "renewed")
        connection.channel().queue_declare("", exclusive=True)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            connection.update_secret("eyJhbGciOiJub25lIn0.e30.", "bad")
        assert caught.value.reply_code == 530
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()
