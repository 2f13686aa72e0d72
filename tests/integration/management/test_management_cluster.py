"""The HTTP API's administration on three members: clients elsewhere, a member down."""

from __future__ import annotations

import base64
import html
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions
import pytest

from tests.integration.members import Member, cluster, eventually


def ask(member: Member, method: str, path: str, body: Any = None, user: str = "guest") -> Any:
    """Return status and value."""
    connection = http.client.HTTPConnection("127.0.0.1", member.management_port, timeout=60)
    token = base64.b64encode(f"{user}:{user}".encode()).decode()
    text = None if body is None else json.dumps(body)
    headers = {"Authorization": f"Basic {token}", "X-Reason": "because"}
    connection.request(method, f"/api/{path}", text, headers)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, json.loads(raw) if raw else None


def page(member: Member) -> str:
    """Return the text of the member's page for people."""
    connection = http.client.HTTPConnection("127.0.0.1", member.management_port, timeout=60)
    connection.request("GET", "/", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    answer = connection.getresponse()
    text = html.unescape(answer.read().decode())
    connection.close()
    return text


@pytest.mark.timeout(240)
def test_administration_on_three_members(tmp_path: Path) -> None:
    """One cluster for all, since a start takes longest."""
    with cluster(tmp_path, 3, BROKERD_AUTH_SCRYPT_LOG2_N="10") as members:
        first, second, third = members
        _counted_elsewhere(first, second)
        _large_bodies(first)
        _clients_elsewhere(first, second)
        _protected_vhosts(first, second)
        _limits_of_two_at_once(first, second)
        _without_a_member(first, second, third)


def _counted_elsewhere(first: Member, second: Member) -> None:
    """What came, went and was published at another member, with rates, in the overview of all."""
    with second.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("counted", durable=True)
        channel.basic_publish("", "nowhere", b"x")
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", "nowhere", b"x", mandatory=True)
        channel.basic_publish("", "counted", b"x", mandatory=True)
        assert channel.basic_get("counted", auto_ack=True)[2] == b"x"
        assert channel.basic_get("counted") == (None, None, None)

        def overview() -> Any:
            return ask(first, "GET", "overview")[1]

        def is_counted() -> bool:
            stats = overview()["message_stats"]
            return bool(stats["publish"] == 3)

        eventually(is_counted, "the messages of another member")
        stats = overview()["message_stats"]
        found = {name: value for name, value in stats.items() if not name.endswith("_details")}
        assert {name: value for name, value in found.items() if value} == {
            "publish": 3,
            "confirm": 2,
            "return_unroutable": 1,
            "drop_unroutable": 1,
            "get_no_ack": 1,
            "get_empty": 1,
            "deliver_get": 1,
        }
        churn = overview()["churn_rates"]
        for name in ("connection_created", "channel_created", "queue_declared", "queue_created"):
            assert churn[name] == 1, name
        assert (churn["connection_closed"], churn["queue_deleted"]) == (0, 0)

        def has_rates() -> bool:
            for _ in range(20):
                channel.basic_publish("", "counted", b"x", mandatory=True)
            told = overview()
            names = ("publish", "confirm")
            return all(told["message_stats"][f"{name}_details"]["rate"] > 0 for name in names)

        eventually(has_rates, "rates of another member")
        channel.queue_delete("counted")
    eventually(lambda: overview()["churn_rates"]["connection_closed"] == 1, "it has ended")
    churn = overview()["churn_rates"]
    assert (churn["queue_deleted"], churn["channel_closed"]) == (1, 1)
    rows = {row["name"]: row for row in ask(first, "GET", "nodes")[1]}
    assert [rows[name]["connection_created"] for name in ("n0", "n1", "n2")] == [0, 1, 0]
    assert "message_stats" not in rows["n1"]
    # Who does not see all vhosts sees what is in the queues of those that he may enter.
    assert ask(first, "PUT", "users/few", {"password": "few", "tags": "management"})[0] == 201
    assert ask(first, "GET", "overview", user="few")[1]["message_stats"]["confirm"] == 0
    assert ask(first, "DELETE", "users/few")[0] == 204


def _large_bodies(first: Member) -> None:
    """A body comes before its sender's password is checked: it waits, and the answer arrives."""
    body = {"value": "x" * 2_000_000}
    for _ in range(3):
        assert ask(first, "PUT", "global-parameters/large", body)[0] == 400
        assert ask(first, "PUT", "global-parameters/large", body, user="nobody")[0] == 401


def _clients_elsewhere(first: Member, second: Member) -> None:
    """A connection is listed and closed by whichever member is asked; strangers may not."""
    assert ask(first, "PUT", "users/some", {"password": "some", "tags": "management"})[0] == 201
    connection = second.connect()
    [row] = eventually(lambda: ask(first, "GET", "connections")[1], "it is listed")
    assert row["node"] == "n1"
    path = f"connections/{quote(row['name'])}"
    assert ask(first, "GET", "connections", user="some") == (200, [])
    assert ask(first, "GET", path, user="some")[0] == 401
    assert ask(first, "DELETE", path, user="some")[0] == 401
    assert ask(first, "DELETE", "connections/username/guest", user="some")[0] == 401
    assert ask(first, "DELETE", path)[0] == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*because"):
        _until_closed(connection)
    assert ask(first, "DELETE", path)[0] == 404


def _until_closed(connection: pika.BlockingConnection) -> None:
    while True:
        connection.process_data_events(1)


def _protected_vhosts(first: Member, second: Member) -> None:
    assert ask(first, "PUT", "vhosts/kept", {"protected_from_deletion": True})[0] == 201
    assert ask(second, "DELETE", "vhosts/kept")[0] == 412
    assert ask(second, "GET", "vhosts/kept")[1]["protected_from_deletion"] is True
    assert ask(second, "DELETE", "vhosts/kept/deletion/protection")[0] == 204
    assert ask(first, "DELETE", "vhosts/kept")[0] == 204


def _limits_of_two_at_once(first: Member, second: Member) -> None:
    """Two limits of one user are two changes of one record, from two members."""
    for member, name in ((first, "max-connections"), (second, "max-channels")):
        assert ask(member, "PUT", f"user-limits/some/{name}", {"value": 7})[0] == 204
    [row] = ask(first, "GET", "user-limits/some")[1]
    assert row["value"] == {"max-connections": 7, "max-channels": 7}
    # A limit is changed without the password, which stays.
    assert ask(first, "GET", "whoami", user="some")[0] == 200


def _without_a_member(first: Member, second: Member, third: Member) -> None:
    """Two of three: all goes on, and probes say that neither may go."""
    queue = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    assert ask(first, "PUT", "queues/%2F/q", queue)[0] == 201
    assert ask(first, "GET", "health/checks/node-is-quorum-critical")[0] == 200
    third.kill()

    def is_critical() -> bool:
        status, value = ask(first, "GET", "health/checks/node-is-quorum-critical")
        return status == 503 and [row["name"] for row in value["queues"]] == ["q"]

    eventually(is_critical, "the check sees that the third is gone")
    eventually(
        lambda: (
            ask(first, "GET", "health/checks/quorum-queues-without-elected-leaders/all-vhosts")
            == (200, {"status": "ok"})
        ),
        "the queue has a leader",
    )
    assert ask(second, "PUT", "users/more", {"password": "more", "tags": ""})[0] == 201
    assert ask(first, "GET", "federation-links") == (200, [])
    assert ask(first, "GET", "connections")[0] == 200
    assert ask(first, "GET", "auth/attempts/n2") == (200, [])
    status, value = ask(first, "DELETE", "queues/quorum/%2F/q/replicas/delete", {"node": "n9"})
    assert (status, value["error"]) == (400, "bad_request")
    file = {"queues": [{"name": "f", "vhost": "/", "durable": True, "auto_delete": False}]}
    assert ask(second, "POST", "definitions", file) == (204, None)
    assert ask(second, "PUT", "queues/%2F/led-there", queue)[0] == 201
    # The last one alone: reads go on, writes say why not.
    second.kill()
    eventually(lambda: ask(first, "GET", "health/checks/ready-to-serve-clients")[0] == 503, "alone")
    status, value = ask(first, "PUT", "users/late", {"password": "late", "tags": ""})
    assert (status, value["error"]) == (503, "unavailable")
    assert ask(first, "GET", "users/more?columns=name") == (200, {"name": "more"})
    eventually(
        lambda: "Queue 'led-there' in vhost '/' has no leader." in page(first),
        "the page says which queue nobody leads",
    )
