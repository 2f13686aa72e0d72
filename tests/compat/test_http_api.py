"""RabbitMQ's management HTTP API: the same calls to both, and every difference has its row.

Statuses, errors and reasons are compared, values where they are deterministic, and of the objects
that clients read the names and types of the fields.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pika.exceptions
import pytest

from tests.compat.http_calls import CALLS, Call
from tests.compat.servers import Server
from tests.integration.members import REPOSITORY, eventually

VHOST = "http api"
PAGE = REPOSITORY / "docs" / "compatibility.md"
#: User to tags, and whether it may enter the vhost.
USERS = {
    "untagged": ("", True),
    "manager": ("management", True),
    "monitor": ("monitoring", False),
    "outsider": ("management", False),
}
#: Fields of RabbitMQ's that brokerd leaves out, by what has them (H-8): of Erlang's processes, of
#: mirrors, of messages paged out.
ABSENT = {
    "queue": {
        *("backing_queue_status", "garbage_collection", "reductions", "reductions_details"),
        *("message_bytes_paged_out", "messages_paged_out", "messages_ready_ram"),
        *("messages_unacknowledged_ram", "recoverable_slaves", "open_files", "message_bytes_dlx"),
    },
    "overview": set[str](),
    "node": {
        *(
            "gc_bytes_reclaimed",
            "gc_num",
            "context_switches",
            "config_files",
            "ra_open_file_metrics",
        ),
        *("metrics_gc_queue_length", "enabled_plugins"),
    },
}
#: And whole families of figures of a node.
FAMILIES = re.compile(r"^(io|mnesia|msg_store|queue_index|gc|context_switches)_")


class Answers:
    """One server's answers to calls."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, call: Call) -> tuple[int, dict[str, str], Any]:
        """Return status, headers in lower case, and the value."""
        body = call.body if isinstance(call.body, bytes) or call.body is None else None
        if body is None and call.body is not None:
            body = json.dumps(call.body).encode()
        token = base64.b64encode(f"{call.user}:{call.user}".encode()).decode()
        path = call.path.replace("{v}", quote(VHOST, safe=""))
        self._http.close()
        headers = {"Authorization": f"Basic {token}"}
        if body is not None:
            # Some of RabbitMQ's endpoints answer 415 without.
            headers["Content-Type"] = "application/json"
        self._http.request(call.method, path, body, headers)
        answer = self._http.getresponse()
        raw = answer.read()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        is_json = headers.get("content-type", "").startswith("application/json")
        return answer.status, headers, json.loads(raw) if raw and is_json else None

    def get(self, path: str) -> Any:
        """Return the value of a GET as guest."""
        status, _, value = self.ask(Call("GET", path))
        assert status == 200, (path, status, value)
        return value

    def close(self) -> None:
        self._http.close()


@contextmanager
def prepared(server: Server) -> Iterator[Answers]:
    """Make the vhost and the users, and take them away again."""
    admin = server.admin
    admin.add_vhost(VHOST)
    for name, (tags, may_enter) in USERS.items():
        admin.add_user(name, name, *filter(None, (tags,)))
        if may_enter:
            admin.set_permissions(VHOST, name)
    answers = Answers(server.http_port)
    try:
        yield answers
    finally:
        answers.close()
        for name in USERS:
            admin.delete_user(name)
        admin.delete_vhost(VHOST)


def unequal(call: Call, rabbitmq: Any, brokerd: Any) -> str:
    """Say how two answers differ where they may not, "" if they do not."""
    (status, headers, value), (our_status, our_headers, our_value) = rabbitmq, brokerd
    found = []
    if "status" not in call.parts and status != our_status:
        found.append(f"status {status} and {our_status} ({our_value})")
    if status == our_status and ("location" in headers) != ("location" in our_headers):
        found.append("Location")
    if status in (405, 200) and headers.get("allow") != our_headers.get("allow"):
        found.append(f"Allow {headers.get('allow')} and {our_headers.get('allow')}")
    if status == 401 and headers.get("www-authenticate") != our_headers.get("www-authenticate"):
        found.append("WWW-Authenticate")
    if status >= 400:
        for part in ("error", "reason"):
            pair = [
                each.get(part) if isinstance(each, dict) else each for each in (value, our_value)
            ]
            if part not in call.parts and pair[0] != pair[1]:
                found.append(f"{part} {pair[0]!r} and {pair[1]!r}")
    elif call.exact and value != our_value:
        found.append(f"value {value!r} and {our_value!r}")
    return "; ".join(found)


def test_both_answer_the_same_calls_alike(rabbitmq: Server, brokerd: Server) -> None:
    wrong, needless = [], []
    with prepared(rabbitmq) as theirs, prepared(brokerd) as ours:
        for call in CALLS:
            pair = theirs.ask(call), ours.ask(call)
            if difference := unequal(call, *pair):
                wrong.append(f"{call.method} {call.path} {call.body}: {difference}")
            bare = Call(call.method, call.path, call.body, call.user, exact="value" in call.parts)
            if call.differs and not unequal(bare, *pair):
                needless.append(f"{call.differs}: {call.path}")
    assert not wrong, "\n".join(wrong)
    assert not needless, f"no difference any more: {needless}"


def kind_of(value: Any) -> str:
    """Return a JSON type; all numbers are one."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def missing(kind: str, rabbitmq: Any, brokerd: Any, path: str = "") -> list[str]:
    """Name the fields of RabbitMQ's object that ours lacks or has of another type."""
    found = []
    for name, value in rabbitmq.items():
        if name in ABSENT[kind] or (kind == "node" and FAMILIES.match(name)):
            continue
        where = f"{path}{name}"
        if name not in brokerd:
            found.append(where)
        elif isinstance(value, dict) and isinstance(brokerd[name], dict):
            found += missing(kind, value, brokerd[name], f"{where}.")
        elif None not in (value, brokerd[name]) and kind_of(value) != kind_of(brokerd[name]):
            found.append(f"{where}: {kind_of(value)} and {kind_of(brokerd[name])}")
    return found


def test_objects_have_the_fields_that_clients_read(rabbitmq: Server, brokerd: Server) -> None:
    """After traffic, since RabbitMQ shows less before."""
    with prepared(rabbitmq) as theirs, prepared(brokerd) as ours:
        for server in (rabbitmq, brokerd):
            with server.connected(VHOST) as connection:
                channel = connection.channel()
                for kind in ("classic", "quorum"):
                    table = {"x-queue-type": kind}
                    channel.queue_declare(kind, durable=True, arguments=table)
                    channel.basic_publish("", kind, b"x")
                    eventually(
                        lambda kind=kind, channel=channel: channel.basic_get(kind, auto_ack=True)[
                            0
                        ],
                        "message",
                    )
        paths = {
            **{f"/api/queues/{{v}}/{kind}": "queue" for kind in ("classic", "quorum")},
            "/api/overview": "overview",
        }

        def told(answers: Answers) -> dict[str, Any]:
            """The objects as soon as the statistics of both queues are in them."""

            def rows() -> dict[str, Any] | None:
                found = {path: answers.get(path) for path in paths}
                stats = [row.get("message_stats", {}) for row in found.values()]
                return found if all({"publish", "get_no_ack"} <= {*row} for row in stats) else None

            return eventually(rows, "statistics")

        their_rows, our_rows = told(theirs), told(ours)
        gaps = {
            path: missing(kind, their_rows[path], our_rows[path]) for path, kind in paths.items()
        }
        assert not any(gaps.values()), gaps
        [node], [member] = theirs.get("/api/nodes"), ours.get("/api/nodes")
        assert missing("node", node, member) == []


STATS = (
    *("publish", "confirm", "return_unroutable", "drop_unroutable", "deliver", "deliver_no_ack"),
    *("get", "get_no_ack", "get_empty", "deliver_get", "ack", "redeliver"),
)
CHURN = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_created", "queue_declared", "queue_deleted"),
)


LIVES_MAX = 3


def counted(answers: Answers) -> dict[str, int]:
    """Return the counters of the overview."""
    row = answers.get("/api/overview")
    stats, churn = row["message_stats"], row["churn_rates"]
    return {name: stats.get(name, 0) for name in STATS} | {
        name: churn.get(name, 0) for name in CHURN
    }


def a_life(server: Server) -> None:
    """A connection that does some of everything."""
    with server.connected(VHOST) as connection:
        channel = connection.channel()
        channel.queue_declare("life", durable=True)
        channel.queue_declare("life", durable=True)
        channel.basic_publish("", "nowhere", b"x")
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", "nowhere", b"x", mandatory=True)
        for _ in range(4):
            channel.basic_publish("", "life", b"x", mandatory=True)
        got, _, _ = channel.basic_get("life")
        channel.basic_reject(got.delivery_tag, requeue=True)
        got, _, _ = channel.basic_get("life")
        channel.basic_ack(got.delivery_tag)
        channel.basic_get("life", auto_ack=True)
        channel.basic_qos(prefetch_count=1)
        for auto_ack in (False, True):
            got, _, _ = next(channel.consume("life", auto_ack=auto_ack))
            if not auto_ack:
                channel.basic_ack(got.delivery_tag)
            channel.cancel()
        channel.basic_get("life")
        channel.queue_delete("life")


def settled(
    answers: Answers, quiet_s: float, other_than: dict[str, int] | None = None
) -> dict[str, int]:
    """Return the counters once they have stayed the same for so long."""
    last, since = counted(answers), time.monotonic()

    def is_quiet() -> bool:
        nonlocal last, since
        now = counted(answers)
        if now != last:
            last, since = now, time.monotonic()
        return last != other_than and time.monotonic() - since > quiet_s

    eventually(is_quiet, "it is counted", 60)
    return last


def lived(server: Server, answers: Answers, quiet_s: float) -> dict[str, int]:
    """Return what a life adds to the counters.

    Connections that other tests keep may end meanwhile, which shows: then it is lived once more.
    """
    for _ in range(LIVES_MAX):
        before = settled(answers, quiet_s)
        a_life(server)
        after = settled(answers, quiet_s, before)
        gained = {name: after[name] - before[name] for name in after}
        if gained["connection_closed"] == gained["connection_created"]:
            break
    return gained


def test_the_overview_counts_the_same(rabbitmq: Server, brokerd: Server) -> None:
    """Messages by their fate, and what came and went."""
    with prepared(rabbitmq) as theirs, prepared(brokerd) as ours:
        # RabbitMQ tells its statistics every 5 s, brokerd's are a second old at most.
        assert lived(rabbitmq, theirs, 6.0) == lived(brokerd, ours, 1.5)


def test_every_difference_has_its_row() -> None:
    _, _, after = PAGE.read_text().partition("## The HTTP API")
    section = after.partition("\n## ")[0]
    rows = re.findall(r"^\| (H-\d+) \|", section, re.MULTILINE)
    used = {call.differs for call in CALLS if call.differs}
    named = set(re.findall(r"\((H-\d+)\)", (REPOSITORY / __file__).read_text()))
    assert len(rows) == len(set(rows))
    assert used | named <= set(rows)
