"""The management API of a real member: what the field's tools read of it, and who attacks it.

The calls of the tools are those of their sources: KEDA's rabbitmq scaler, Flower, Telegraf's and
Datadog's inputs, NServiceBus' broker check.  What RabbitMQ answers is compared in tests/compat.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from brokerd.server.management.door import WRITE_BYTES
from tests.integration.amqp.test_amqp_starts import certificate
from tests.integration.federation_rig import Admin
from tests.integration.members import Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)

GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="
NUMBERS = ("messages", "messages_ready", "messages_unacknowledged", "consumers", "memory")


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10", "BROKERD_LIMITS_MANAGEMENT_BODY_BYTES": "65536"}
    with cluster(tmp_path_factory.mktemp("management"), 1, **settings) as [made]:
        with made.connect() as connection:
            channel = connection.channel()
            channel.queue_declare("idle", durable=True)
            channel.queue_declare("idle-quorum", durable=True, arguments={"x-queue-type": "quorum"})
        yield made


def ask(
    member: Member,
    method: str,
    path: str,
    body: bytes | None = None,
    user: str = "guest:guest",
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers in lower case, body."""
    token = base64.b64encode(user.encode()).decode()
    connection = http.client.HTTPConnection("127.0.0.1", member.management_port, timeout=60)
    try:
        given = {"Authorization": f"Basic {token}"} if user else {}
        connection.request(method, path, body, given | headers)
        answer = connection.getresponse()
        read = answer.read()
        return answer.status, {n.lower(): v for n, v in answer.getheaders()}, read
    finally:
        connection.close()


def get(member: Member, path: str, user: str = "guest:guest") -> Any:
    status, _, body = ask(member, "GET", path, user=user)
    assert status == 200, (path, status, body)
    return json.loads(body)


# ---- what tools read ----------------------------------------------------------------------------


def test_keda_scales_by_one_queue_and_by_many(member: Member) -> None:
    row = get(member, "/api/queues/%2F/idle")
    assert (row["messages"], row["messages_ready"], row["name"]) == (0, 0, "idle")
    assert row["message_stats"]["publish_details"]["rate"] == 0
    assert row["message_stats"]["deliver_get_details"]["rate"] == 0
    page = get(
        member,
        "/api/queues/%2F?page=1&use_regex=true&pagination=false&name=%5Eidle&page_size=100",
    )
    assert [row["name"] for row in page["items"]] == ["idle", "idle-quorum"]
    assert all(row["message_stats"]["publish_details"] for row in page["items"])


def test_flower_reads_the_queues_of_a_vhost(member: Member) -> None:
    rows = {row["name"]: row for row in get(member, "/api/queues/%2F")}
    for row in rows.values():
        assert all(isinstance(row[name], int) for name in NUMBERS), row
    assert rows["idle"]["state"] == "running"


def test_telegraf_and_datadog_read_an_idle_broker(member: Member) -> None:
    overview = get(member, "/api/overview")
    for name in ("messages", "messages_ready", "messages_unacknowledged"):
        assert overview["queue_totals"][name] == 0
    for name in ("channels", "connections", "consumers", "exchanges", "queues"):
        assert isinstance(overview["object_totals"][name], int)
    for name in ("publish", "ack", "deliver", "deliver_get", "redeliver", "return_unroutable"):
        assert isinstance(overview["message_stats"][name], int)
        # Another test may have published a moment ago.
        assert overview["message_stats"][f"{name}_details"]["rate"] >= 0
    assert {"amqp", "http", "clustering"} <= {row["protocol"] for row in overview["listeners"]}
    [node] = get(member, "/api/nodes")
    for name in (
        *("mem_used", "mem_limit", "disk_free", "disk_free_limit", "fd_used", "fd_total"),
        *("sockets_used", "sockets_total", "proc_used", "proc_total", "run_queue", "uptime"),
    ):
        assert isinstance(node[name], int), name
    assert (node["running"], node["mem_alarm"], node["disk_free_alarm"]) == (True, False, False)
    assert get(member, f"/api/nodes/{node['name']}")["name"] == node["name"]
    # Fields that clients of RabbitMQ 4.3 look for.
    assert node["rabbitmq_version"] == "4.3.6"
    assert node["crypto_lib_version"].startswith("OpenSSL")
    assert node["erlang_full_version"].startswith("Python 3")
    memory = get(member, f"/api/nodes/{node['name']}/memory")["memory"]
    assert memory["total"]["rss"] > 0


def test_nservicebus_starts(member: Member) -> None:
    flags = {row["name"]: row["state"] for row in get(member, "/api/feature-flags")}
    assert (flags["stream_queue"], flags["quorum_queue"]) == ("enabled", "enabled")
    assert get(member, "/api/overview")["rabbitmq_version"].split(".")[0] in ("3", "4")
    page = get(member, "/api/queues/%2F?page=1&page_size=500&name=idle-quorum&use_regex=false")
    [row] = page["items"]
    assert row["delivery_limit"] == "unlimited" or isinstance(row["delivery_limit"], int)
    assert get(member, "/api/queues/%2F/idle/bindings")[0]["source"] == ""


def test_a_page_in_some_order_is_that_of_the_whole_list(member: Member) -> None:
    """Pages are sorted by as little as the columns take (queues.py); nobody is to notice."""
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(4):
            kind = "quorum" if number % 2 else "classic"
            arguments = {"x-queue-type": kind}
            channel.queue_declare(f"order-{number}", durable=True, arguments=arguments)
            for _ in range((number * 7) % 4):
                channel.basic_publish("", f"order-{number}", b"x" * number)
        channel.basic_consume("order-2", lambda *_: None)
        for sort in (
            *("messages", "messages_ready", "consumers", "memory", "state", "node", "type"),
            *("message_stats.publish", "message_bytes", "type,messages", "messages,name", "none"),
            *("messages_unacknowledged", "message_stats.ack", "messages_details.rate"),
        ):
            for turn in ("", "&sort_reverse=true"):
                where = f"sort={sort}{turn}"
                page = get(member, f"/api/queues?page=1&page_size=500&{where}")["items"]
                whole = get(member, f"/api/queues?{where}")
                assert [row["name"] for row in page] == [row["name"] for row in whole], where
                if "," not in sort and sort != "none":
                    values = [functools.reduce(dict.get, sort.split("."), row) for row in whole]
                    assert values == sorted(values, reverse=bool(turn)), where
        narrow = get(member, "/api/queues?columns=name,message_stats.publish,policy&sort=name")
        assert all(row.keys() == {"name", "message_stats", "policy"} for row in narrow)
        assert all(row["message_stats"].keys() == {"publish"} for row in narrow)
        assert get(member, "/api/queues?columns=arguments&sort=name&page=1")["items"][0].keys() == {
            "arguments"
        }
        for number in range(4):
            channel.queue_delete(f"order-{number}")


def test_a_long_answer_is_whole_and_ends_with_a_client_that_leaves(member: Member) -> None:
    """It is written in parts (door.py), each as the client takes it."""
    plain = {"vhost": "long", "durable": True, "auto_delete": False, "arguments": {}}
    queues = [{"name": f"{at:03d}" + "x" * 200} | plain for at in range(200)]
    wanted = {"vhosts": [{"name": "long"}], "queues": queues}
    status, _, body = ask(member, "POST", "/api/definitions", json.dumps(wanted).encode())
    assert status == 204, body
    status, headers, body = ask(member, "GET", "/api/queues/long")
    assert status == 200
    assert len(body) == int(headers["content-length"]) > WRITE_BYTES
    assert [row["name"] for row in json.loads(body)] == [each["name"] for each in queues]
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", member.management_port), timeout=60) as leaving:
            head = "GET /api/queues/long HTTP/1.1\r\nHost: localhost"
            asked = f"{head}\r\nAuthorization: {GUEST}\r\n\r\n"
            leaving.sendall(asked.encode())
            assert leaving.recv(100).startswith(b"HTTP/1.1 200 ")
    status, headers, nothing = ask(member, "HEAD", "/api/queues/long")
    assert (status, nothing) == (200, b"")
    assert int(headers["content-length"]) > WRITE_BYTES
    assert ask(member, "DELETE", "/api/vhosts/long")[0] == 204
    assert "Traceback" not in member.log()


def test_rates_follow_what_is_published(member: Member) -> None:
    get(member, "/api/queues/%2F/idle")
    with member.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("busy", durable=True)

        def rate() -> float:
            for _ in range(20):
                channel.basic_publish("", "busy", b"x")
            row = get(member, "/api/queues/%2F/busy")
            return float(row["message_stats"]["publish_details"]["rate"])

        assert eventually(rate, "a rate of publishing") > 0
        channel.queue_delete("busy")


# ---- who is kept out ----------------------------------------------------------------------------


def test_headers_keep_browsers_safe(member: Member) -> None:
    _, headers, _ = ask(member, "GET", "/api/overview", Origin="http://evil.example")
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-cache"
    assert "access-control-allow-origin" not in headers
    assert "aiohttp" not in headers["server"]


def test_a_page_whose_name_rebinds_to_this_machine_is_not_let_in_as_guest(member: Member) -> None:
    """SEC: its origin equals its host, and its visitor's browser asks from 127.0.0.1."""
    name = f"rebound.example:{member.management_port}"
    page = {"Host": name, "Origin": f"http://{name}"}
    assert ask(member, "GET", "/api/overview", **page)[0] == 401
    assert ask(member, "PUT", "/api/queues/%2F/no", b"{}", **page)[0] == 401
    assert ask(member, "GET", "/api/overview", **{"X-Forwarded-For": "192.0.2.7"})[0] == 401
    assert ask(member, "GET", "/api/overview", Host=f"localhost:{member.management_port}")[0] == 200


@pytest.mark.parametrize(
    ("user", "status"), [("", 401), ("guest:no", 401), ("no:no", 401), ("guest", 401)]
)
def test_strangers_get_nothing_and_their_bodies_are_not_read(
    member: Member, user: str, status: int
) -> None:
    """A megabyte is announced and never sent: the answer comes all the same."""
    found, headers, _ = ask(member, "PUT", "/api/queues/%2F/no", user=user)
    assert (found, headers["www-authenticate"]) == (
        status,
        'Basic realm="RabbitMQ Management"',
    )
    raw = socket.create_connection(("127.0.0.1", member.management_port), 30)
    with contextlib.closing(raw):
        raw.sendall(
            b"PUT /api/queues/%2F/no HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert raw.recv(100).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"x" * 70_000, {}, 413),
        (b'{"a":' * 5_000, {}, 400),
        (b"\xff\xfe", {}, 400),
        (gzip.compress(b"{}"), {"Content-Encoding": "gzip"}, 415),
        (b'{"arguments": {"x": 123456789012345678901234567890}}', {}, 400),
        (b'{"arguments": {"x-max-length": -1}}', {}, 400),
        (b'{"arguments": 1}', {}, 400),
    ],
)
def test_bodies_that_make_no_sense_are_refused(
    member: Member, body: bytes, headers: dict[str, str], status: int
) -> None:
    found, _, answer = ask(member, "PUT", "/api/queues/%2F/no", body, **headers)
    assert (found, set(json.loads(answer))) == (status, {"error", "reason"})


def test_a_body_may_be_as_large_as_the_setting_says(member: Member) -> None:
    body = json.dumps({"arguments": {"x-note": "n" * 65_000}}).encode()
    assert ask(member, "PUT", "/api/queues/%2F/large", body)[0] == 201
    assert ask(member, "DELETE", "/api/queues/%2F/large")[0] == 204


def test_a_body_in_chunks_has_the_same_bound(member: Member) -> None:
    head = (
        b"PUT /api/queues/%2F/no HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", member.management_port), 30) as raw:
        raw.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(200):
                raw.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            answer = raw.recv(100)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert get(member, "/api/whoami")["name"] == "guest"


def test_a_thousand_connections_keep_nobody_out(member: Member) -> None:
    """SEC-34: strangers make room for whoever comes with a request."""
    held: list[socket.socket] = []
    try:
        for _ in range(1_000):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", member.management_port), 10))
        assert get(member, "/api/whoami")["name"] == "guest"
    finally:
        for each in held:
            each.close()


def test_old_clients_and_odd_methods_get_an_answer(member: Member) -> None:
    with socket.create_connection(("127.0.0.1", member.management_port), 30) as raw:
        raw.sendall(b"GET /api/whoami HTTP/1.0\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n")
        answer = b""
        while part := raw.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.0 200")
    who = b'{"name":"guest","tags":["administrator"],"is_internal_user":true}'
    assert answer.endswith(who)
    assert ask(member, "HEAD", "/api/overview")[::2] == (200, b"")
    assert ask(member, "PATCH", "/api/overview")[0] == 405
    assert ask(member, "GET", "/api/queues/%00/%00")[0] == 404
    assert ask(member, "GET", "/api/queues/%2F/" + "x" * 7_000)[0] == 404


def test_names_of_any_kind_come_back_as_they_were(member: Member) -> None:
    for path in ("a%2Fb", "%22%27%3Cscript%3E", "%E2%82%AC%20%F0%9F%90%87", "%25%2B~"):
        assert ask(member, "PUT", f"/api/queues/%2F/{path}", b"{}")[0] == 201
        row = get(member, f"/api/queues/%2F/{path}")
        assert row["name"] == unquote(path)
        assert ask(member, "DELETE", f"/api/queues/%2F/{path}")[0] == 204


def test_rights_of_writes_are_those_of_amqp(member: Member) -> None:
    """R-PERM-1: a user of the management tag may do here what it may over AMQP."""
    admin = Admin(member)
    try:
        admin.put("user", "small", {"password": "small", "tags": ["management"]}, "")
        admin.put("permission", "small", {"configure": "^mine", "write": "", "read": ""}, "/")
        user = "small:small"
        assert ask(member, "PUT", "/api/queues/%2F/mine", b"{}", user)[0] == 201
        assert ask(member, "PUT", "/api/queues/%2F/other", b"{}", user)[0] == 401
        body = b'{"properties":{},"routing_key":"","payload":"x","payload_encoding":"string"}'
        status, _, answer = ask(member, "POST", "/api/exchanges/%2F/amq.topic/publish", body, user)
        assert (status, b"403 ACCESS_REFUSED" in answer) == (400, True)
        body = b'{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}'
        assert ask(member, "POST", "/api/queues/%2F/mine/get", body, user)[0] == 401
        assert ask(member, "GET", "/api/nodes", user=user)[0] == 401
        assert ask(member, "DELETE", "/api/queues/%2F/mine", user=user)[0] == 204
    finally:
        admin.delete("user", "small", "")
        admin.close()


def test_tls_is_served_where_the_member_has_a_certificate(tmp_path: Path) -> None:
    """And a browser is told to stay with it."""
    cert_file, key_file = certificate(tmp_path)
    [port] = free_ports(1)
    env = {
        "BROKERD_TLS_CERT_FILE": str(cert_file),
        "BROKERD_TLS_KEY_FILE": str(key_file),
        "BROKERD_LISTENERS_MANAGEMENT_TLS": str(port),
    }
    with cluster(tmp_path, 1, **env):
        context = ssl.create_default_context(cafile=str(cert_file))
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        with contextlib.closing(connection):
            connection.request("GET", "/api/whoami", headers={"Authorization": GUEST})
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["name"]) == (200, "guest")
            assert answer.headers["Strict-Transport-Security"].startswith("max-age=")


# ---- several members ----------------------------------------------------------------------------


def test_every_member_shows_queues_that_others_hold_and_says_who_is_down(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, BROKERD_AUTH_SCRYPT_LOG2_N="10") as members:
        with members[1].connect() as connection:
            channel = connection.channel()
            channel.queue_declare("elsewhere", durable=True)
            for _ in range(3):
                channel.basic_publish("", "elsewhere", b"x")

            def is_shown() -> bool:
                row = get(members[0], "/api/queues/%2F/elsewhere")
                return (row["node"], row["messages"], row["state"]) == ("n1", 3, "running")

            eventually(is_shown, "the figures of a queue on another member")
            eventually(
                lambda: get(members[0], "/api/overview")["object_totals"]["connections"] == 1,
                "a connection to another member",
            )
        members[1].kill()

        def is_down() -> bool:
            rows = {row["name"]: row["running"] for row in get(members[0], "/api/nodes")}
            return rows == {"n0": True, "n1": False, "n2": True}

        eventually(is_down, "the killed member is down")
        row = get(members[0], "/api/queues/%2F/elsewhere")
        assert row["state"] == "down"
        assert "messages" not in row
