"""Tokens in the place of passwords at a real member: AMQP and gRPC, their end, and new ones."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pika
import pika.exceptions
import pytest

from brokerd.amqp import methods
from brokerd.rpc.v1 import admin_pb2
from tests.integration.grpc.test_admin_grpc import Admin, delete, put
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import Client, batch, deliveries, metadata, publication
from tests.integration.raw_client import client, publish
from tests.tokens import TestIssuer

pytestmark = pytest.mark.timeout(300)

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
EVERYTHING = ("configure:*/*", "write:*/*/*", "read:*/*/*")
CLUSTER = "https://kubernetes.default.svc.cluster.local"


@dataclass
class Rig:
    """A member, and those who make tokens for it."""

    member: Member
    issuer: TestIssuer
    kubernetes: TestIssuer

    def account(self, name: str, seconds: float = 600, **claims: Any) -> str:
        """Return a token of a ServiceAccount in the namespace shop."""
        stated = {"iss": CLUSTER, "aud": ["brokerd"], "sub": f"system:serviceaccount:shop:{name}"}
        return self.kubernetes.token(seconds=seconds, scope=None, **(stated | claims))

    def connect(self, token: str, user: str = "", **settings: Any) -> pika.BlockingConnection:
        """Connect with a token for a password."""
        return self.member.connect(credentials=pika.PlainCredentials(user, token), **settings)

    def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and value of a call of the management API with a bearer token."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.member.management_port, timeout=60
        )
        sent = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, sent, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw else None
        finally:
            connection.close()

    def refused(self, reason: str, listener: str = "amqp") -> float:
        """Return how many logins were refused for a reason."""
        name = f'brokerd_logins_refused_total{{listener="{listener}",reason="{reason}"}} '
        url = f"http://127.0.0.1:{self.member.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    issuer, kubernetes = TestIssuer(), TestIssuer("ES256")
    folder = tmp_path_factory.mktemp("tokens")
    with issuer.serving() as keys, kubernetes.serving() as cluster_keys:
        settings = {
            "BROKERD_OAUTH2_RESOURCE_SERVER_ID": "brokerd",
            "BROKERD_OAUTH2_JWKS_URL": keys,
            "BROKERD_KUBERNETES_ISSUER": CLUSTER,
            "BROKERD_KUBERNETES_JWKS_URL": cluster_keys,
        }
        with cluster(folder, 1, **settings) as [member]:
            yield Rig(member, issuer, kubernetes)


@pytest.fixture
def admin(rig: Rig) -> Iterator[Admin]:
    made = Admin(rig.member.grpc_port)
    yield made
    made.channel.close()


def test_pika_works_with_a_token_and_has_the_rights_of_its_scopes(rig: Rig) -> None:
    scopes = ("configure:*/till-*", "write:*/till-*", "write:*/amq.default", "read:*/till-*")
    with rig.connect(rig.issuer.token(*scopes), user="whoever") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("till-1", exclusive=True)
        channel.basic_publish("", "till-1", b"one")
        method, _, body = channel.basic_get("till-1", auto_ack=True)
        assert (method is not None, body) == (True, b"one")
        # R-PUB-3: the user is who the token speaks of.
        channel.basic_publish("", "till-1", b"two", pika.BasicProperties(user_id="till"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.queue_declare("office-1")
        assert caught.value.reply_code == 403
        assert "configure access to queue 'office-1'" in caught.value.reply_text
        assert "refused for user 'till'" in caught.value.reply_text


def test_a_token_without_a_scope_for_the_vhost_does_not_come_in(rig: Rig) -> None:
    refused = "(530).*access to vhost '/' refused for user 'till'"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=refused):
        rig.connect(rig.issuer.token("read:other/*"))


def test_refusals_have_a_reason_for_the_operator_and_none_for_the_client(rig: Rig) -> None:
    tokens = {
        "token_expired": rig.issuer.token(*EVERYTHING, seconds=-5),
        "token_audience": rig.issuer.token(*EVERYTHING, aud="other"),
        "token_signature": TestIssuer().token(*EVERYTHING),
        "token_algorithm": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.",
    }
    for reason, token in tokens.items():
        before = rig.refused(reason)
        with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
            rig.connect(token)
        assert "Login was refused using authentication mechanism PLAIN" in str(caught.value)
        assert rig.refused(reason) == before + 1
        assert not any(part in rig.member.log() for part in token.split(".")[1:] if part)


def test_a_new_key_of_the_issuer_lets_in_and_an_old_one_works_while_it_is_away(rig: Rig) -> None:
    rig.connect(rig.issuer.token(*EVERYTHING)).close()
    rig.issuer.is_away = True
    try:
        rig.connect(rig.issuer.token(*EVERYTHING)).close()
    finally:
        rig.issuer.is_away = False
    rig.issuer.add_key("k2", "ES256")

    def comes_in() -> bool:
        try:
            rig.connect(rig.issuer.token(*EVERYTHING, key_id="k2")).close()
        except pika.exceptions.AMQPError:
            return False
        return True

    # The issuer is asked once in ten seconds at most.
    eventually(comes_in, "the new key is known")


def test_a_connection_ends_with_its_token(rig: Rig) -> None:
    """As RabbitMQ 4: 320, credential expired."""
    token = rig.issuer.token(*EVERYTHING, exp=int(time.time()) + 3)
    with client(rig.member.amqp_port, user="", password=token) as raw:
        raw.open(1)
        closed = raw.expect(methods.ConnectionClose)
        assert (closed.reply_code, closed.reply_text) == (
            320,
            "CONNECTION_FORCED - credential expired",
        )
        raw.send(0, methods.ConnectionCloseOk())
        assert raw.at_end()


def test_a_token_is_renewed_under_load(rig: Rig) -> None:
    """R-CON-13: nothing is lost or refused while a publisher's token is replaced, twice."""
    with rig.connect(rig.issuer.token(*EVERYTHING, exp=int(time.time()) + 4)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("renewed")
        started, count, renewals = time.monotonic(), 0, 0
        while time.monotonic() < started + 6:
            channel.basic_publish("", "renewed", b"x", mandatory=True)
            count += 1
            if time.monotonic() > started + 1.5 * (renewals + 1) and renewals < 2:
                end = int(time.time()) + (4 if renewals == 0 else 600)
                connection.update_secret(rig.issuer.token(*EVERYTHING, exp=end), "renewal")
                renewals += 1
        assert renewals == 2
        found = channel.queue_delete("renewed")
        declared = channel.queue_declare("renewed")
        assert declared.method.message_count == 0
        channel.queue_delete("renewed")
        assert found is not None
        assert count > 50


def test_narrower_rights_of_a_new_token_hold_at_once(rig: Rig) -> None:
    capabilities = {"consumer_cancel_notify": True}
    token = rig.issuer.token(*EVERYTHING)
    with client(rig.member.amqp_port, user="", password=token, capabilities=capabilities) as raw:
        raw.open(1)
        raw.declare(1, "narrow")
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        raw.send(1, publish(1, "", "narrow", b"x"))
        raw.expect(methods.BasicAck)
        raw.open(2)
        raw.send(2, methods.BasicConsume(0, "narrow", "c"))
        raw.expect(methods.BasicConsumeOk)
        raw.content(methods.BasicDeliver)
        fewer = rig.issuer.token("configure:*/*", "write:*/other")
        raw.send(0, methods.ConnectionUpdateSecret(fewer.encode(), "less"))
        raw.expect(methods.ConnectionUpdateSecretOk)
        assert raw.expect(methods.BasicCancel).consumer_tag == "c"
        raw.send(1, publish(1, "", "narrow", b"y"))
        closed = raw.expect(methods.ChannelClose)
        assert closed.reply_code == 403
        raw.open(3)
        raw.send(3, methods.QueueDelete(0, "narrow"))
        raw.expect(methods.QueueDeleteOk)


@pytest.mark.parametrize("what", ["another user", "expired", "a password", "unsigned"])
def test_a_secret_that_is_no_token_of_the_user_ends_the_connection(rig: Rig, what: str) -> None:
    secret = {
        "another user": rig.issuer.token(*EVERYTHING, sub="other"),
        "expired": rig.issuer.token(*EVERYTHING, seconds=-1),
        "a password": "guest",
        "unsigned": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ0aWxsIn0.",
    }[what]
    with client(rig.member.amqp_port, user="", password=rig.issuer.token(*EVERYTHING)) as raw:
        raw.send(0, methods.ConnectionUpdateSecret(secret.encode(), "x"))
        closed = raw.expect(methods.ConnectionClose)
        assert (closed.reply_code, closed.reply_text) == (
            530,
            "NOT_ALLOWED - New secret was refused by one of the backends",
        )


def test_grpc_takes_a_token_as_bearer_and_as_password(rig: Rig) -> None:
    token = rig.issuer.token(*EVERYTHING)
    messages = Client(rig.member.grpc_port)
    for sent in ((("authorization", f"Bearer {token}"),), metadata("", token)):
        with rig.connect(token) as connection:
            connection.channel().queue_declare("over-grpc")
        call = messages.publish(*sent)
        call.send(batch(publication(1, "over-grpc", b"x")))
        assert len(call.rest()) >= 1
        consumer = messages.consume(*sent, queue="over-grpc", credit=1)
        assert deliveries(consumer, 1)[0].body == b"x"
        consumer.half_close()
    short = rig.issuer.token(*EVERYTHING, exp=int(time.time()) + 3)
    call = messages.consume(("authorization", f"Bearer {short}"), queue="over-grpc", credit=1)
    assert call.error() == (grpc.StatusCode.UNAUTHENTICATED, "credential expired")
    messages.channel.close()


def test_only_a_token_with_the_tag_administers(rig: Rig) -> None:
    with_tag = Admin(rig.member.grpc_port, "", rig.issuer.token("tag:administrator"))
    assert with_tag.apply(put("queue", "by-token", {}))[0].code == admin_pb2.OperationResult.OK
    assert with_tag.apply(delete("queue", "by-token"))[0].code == admin_pb2.OperationResult.OK
    without = Admin(rig.member.grpc_port, "", rig.issuer.token(*EVERYTHING, sub="guest"))
    with pytest.raises(grpc.RpcError) as caught:
        without.objects("vhost")
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    for one in (with_tag, without):
        one.channel.close()


def test_a_user_of_the_same_name_has_its_limits_and_not_its_rights(rig: Rig, admin: Admin) -> None:
    """R-CON-12; and who deletes that user sends nobody with a token away."""
    limits = {"password": "x", "tags": ["administrator"], "limits": {"max-channels": 1}}
    admin.apply(put("user", "till", limits, vhost=""), put("permission", "till", ALL))
    try:
        with rig.connect(rig.issuer.token("read:*/only")) as connection:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                connection.channel().queue_declare("mine")
            connection.channel()
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
                connection.channel()
            assert "maximum allowed user limit of (1)" in caught.value.reply_text
        connection = rig.connect(rig.issuer.token(*EVERYTHING))
        admin.apply(delete("user", "till", vhost=""))
        connection.channel().queue_declare("", exclusive=True)
        connection.close()
    finally:
        admin.apply(delete("user", "till", vhost=""))


def test_a_service_account_is_the_user_that_it_stands_for(rig: Rig, admin: Admin) -> None:
    tagged = {"password": "x", "tags": ["serviceaccount:shop/orders"]}
    admin.apply(put("user", "orders", tagged, vhost=""))
    refused = "access to vhost '/' refused for user 'orders'"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=refused):
        rig.connect(rig.account("orders"))
    admin.apply(put("permission", "orders", ALL))
    with rig.connect(rig.account("orders")) as connection:
        connection.channel().queue_declare("", exclusive=True)
        connection.update_secret(rig.account("orders", seconds=900), "kubelet")
        connection.channel().queue_declare("", exclusive=True)
    for token in (rig.account("other"), rig.account("orders", aud=["api"])):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            rig.connect(token)
    # The user is one of the catalog: gone, its connections go.
    connection = rig.connect(rig.account("orders"))
    admin.apply(delete("user", "orders", vhost=""))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="is deleted"):
        connection.process_data_events(time_limit=30)


def test_many_bad_tokens_at_once_hold_nobody_up(rig: Rig) -> None:
    """Unknown keys make the issuer be asked once in ten seconds, however many come."""
    bad = TestIssuer()
    bad.add_key("nobody's")
    token = bad.token(*EVERYTHING, key_id="nobody's")
    asked = rig.issuer.asked
    began = time.monotonic()

    def try_in() -> None:
        for _ in range(5):
            with pytest.raises(pika.exceptions.AMQPError):
                rig.connect(token)

    threads = [threading.Thread(target=try_in) for _ in range(8)]
    for thread in threads:
        thread.start()
    rig.connect(rig.issuer.token(*EVERYTHING)).close()
    for thread in threads:
        thread.join()
    assert rig.issuer.asked - asked <= 1 + (time.monotonic() - began) / 10


# ---- over HTTP ----------------------------------------------------------------------------------

QUEUES = "/api/queues/%2F"
GET = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}


def publication_of(payload: str) -> dict[str, Any]:
    return {
        "properties": {},
        "routing_key": "web-1",
        "payload": payload,
        "payload_encoding": "string",
    }


def test_http_takes_a_token_and_shows_the_vhosts_of_its_scopes(rig: Rig, admin: Admin) -> None:
    admin.apply(put("vhost", "closed", {}, vhost=""))
    admin.apply(put("queue", "theirs", {}, vhost="closed"), put("queue", "web-0", {}))
    token = rig.issuer.token("tag:management", "read:%2F/web-*")
    who = {"name": "till", "tags": ["management"], "is_internal_user": False}
    assert rig.ask(token, "GET", "/api/whoami") == (200, who)
    status, rows = rig.ask(token, "GET", "/api/queues")
    assert (status, {row["vhost"] for row in rows}) == (200, {"/"})
    assert "web-0" in {row["name"] for row in rows}
    status, vhosts = rig.ask(token, "GET", "/api/vhosts")
    assert [row["name"] for row in vhosts] == ["/"]
    assert rig.ask(token, "GET", "/api/queues/closed")[0] == 404
    assert rig.ask(token, "GET", "/api/nodes")[0] == 401
    monitor = rig.issuer.token("tag:monitoring")
    status, rows = rig.ask(monitor, "GET", "/api/queues")
    assert {row["vhost"] for row in rows} == {"/", "closed"}
    admin.apply(delete("vhost", "closed", vhost=""), delete("queue", "web-0"))


def test_a_token_declares_publishes_and_gets_over_http_as_its_scopes_say(rig: Rig) -> None:
    """And its user is none of the catalog."""
    scopes = ("configure:*/web-*", "write:*/web-*", "write:*/amq.default", "read:*/web-*")
    token = rig.issuer.token("tag:management", *scopes)
    status, refused = rig.ask(token, "PUT", f"{QUEUES}/office-1", {})
    assert (status, refused["error"]) == (401, "not_authorised")
    assert "configure access to queue 'office-1'" in refused["reason"]
    assert "refused for user 'till'" in refused["reason"]
    assert rig.ask(token, "PUT", f"{QUEUES}/web-1", {"durable": True})[0] == 201
    publish_to = "/api/exchanges/%2F/amq.default/publish"
    assert rig.ask(token, "POST", publish_to, publication_of("x")) == (200, {"routed": True})
    status, rows = rig.ask(token, "POST", f"{QUEUES}/web-1/get", GET)
    assert (status, [row["payload"] for row in rows]) == (200, ["x"])
    reader = rig.issuer.token("tag:management", "read:*/web-*")
    assert rig.ask(reader, "POST", publish_to, publication_of("y"))[0] == 400
    assert rig.ask(reader, "DELETE", f"{QUEUES}/web-1")[0] == 401
    assert rig.ask(token, "GET", "/api/aliveness-test/%2F")[0] == 400
    assert rig.ask(token, "DELETE", f"{QUEUES}/web-1") == (204, None)


def test_bad_tokens_are_a_401_over_http(rig: Rig) -> None:
    tokens = {
        "token_expired": rig.issuer.token("tag:management", seconds=-5),
        "token_signature": TestIssuer().token("tag:administrator"),
        "token_algorithm": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.",
    }
    for reason, token in tokens.items():
        before = rig.refused(reason, "http")
        status, answer = rig.ask(token, "GET", "/api/whoami")
        assert (status, answer) == (401, {"error": "not_authorized", "reason": "Not_Authorized"})
        assert rig.refused(reason, "http") == before + 1
    assert rig.ask("no token at all", "GET", "/api/whoami")[0] == 401
    # Without a tag nobody comes in, whatever the catalog's user of that name may do.
    untagged = rig.issuer.token(*EVERYTHING, sub="guest")
    assert rig.ask(untagged, "GET", "/api/whoami")[1]["reason"] == "Not management user"


def test_a_token_makes_a_vhost_and_gives_the_user_of_its_name_nothing(
    rig: Rig, admin: Admin
) -> None:
    admin.apply(put("user", "till", {"password": "x", "tags": []}, vhost=""))
    token = rig.issuer.token("tag:administrator")
    assert rig.ask(token, "PUT", "/api/vhosts/by-token", {})[0] == 201
    definitions = {"vhosts": [{"name": "by-file"}]}
    assert rig.ask(token, "POST", "/api/definitions", definitions) == (204, None)
    assert rig.ask(token, "GET", "/api/users/till/permissions") == (200, [])
    for path in ("vhosts/by-token", "vhosts/by-file", "users/till"):
        assert rig.ask(token, "DELETE", f"/api/{path}")[0] == 204


def test_a_user_of_the_same_name_keeps_its_connections_to_itself(rig: Rig, admin: Admin) -> None:
    """They are two: neither sees nor closes what is the other's."""
    user = {"password": "x", "tags": ["management"]}
    admin.apply(put("user", "till", user, vhost=""), put("permission", "till", ALL))
    token = rig.issuer.token(*EVERYTHING, "tag:management")
    own = rig.connect(token, client_properties={"connection_name": "by token"})
    credentials = pika.PlainCredentials("till", "x")
    others = rig.member.connect(credentials=credentials)
    try:
        for connection in (own, others):
            connection.channel()

        def rows(kind: str) -> Any:
            return rig.ask(token, "GET", f"/api/{kind}")[1]

        [row] = eventually(lambda: rows("connections"), "the token's connection is listed")
        assert row["user_provided_name"] == "by token"
        assert "by_token" not in row
        assert [each["connection_details"]["name"] for each in rows("channels")] == [row["name"]]
        totals = rig.ask(token, "GET", "/api/overview")[1]["object_totals"]
        assert (totals["connections"], totals["channels"]) == (1, 1)
        assert rig.ask(token, "DELETE", "/api/connections/username/till")[0] == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            own.process_data_events(None)
        others.channel().queue_declare("", exclusive=True)
    finally:
        others.close()
        admin.apply(delete("user", "till", vhost=""))


def test_a_service_account_calls_http_as_the_user_that_it_stands_for(
    rig: Rig, admin: Admin
) -> None:
    tags = ["serviceaccount:shop/scaler", "management"]
    admin.apply(put("user", "scaler", {"password": "x", "tags": tags}, vhost=""))
    token = rig.account("scaler")
    who = {"name": "scaler", "tags": tags, "is_internal_user": True}
    assert rig.ask(token, "GET", "/api/whoami") == (200, who)
    assert rig.ask(token, "GET", "/api/vhosts") == (200, [])
    admin.apply(put("permission", "scaler", ALL))
    assert rig.ask(token, "PUT", f"{QUEUES}/web-1", {})[0] == 201
    publish_to = "/api/exchanges/%2F/amq.default/publish"
    assert rig.ask(token, "POST", publish_to, publication_of("x")) == (200, {"routed": True})
    assert rig.ask(token, "DELETE", f"{QUEUES}/web-1") == (204, None)
    admin.apply(delete("user", "scaler", vhost=""))
    assert rig.ask(token, "GET", "/api/whoami")[0] == 401
