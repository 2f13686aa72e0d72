"""`brokerctl triage`, redrive, move, delete_messages: what is asked for, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerd.ctl import browse, client, queue_jobs, triage
from brokerd.rpc.v1 import admin_pb2

Row = dict[str, Any]
FINGERPRINT = "ad5a5770a85f"


def group(name: str = FINGERPRINT, messages: int = 3, **more: Any) -> str:
    row: Row = {
        "fingerprint": name,
        "told_by": "broker",
        "framework": "",
        "reason": "rejected",
        "first_queue": "work",
        "last_queue": "work",
        "exchange": "shop",
        "routing_key": "new",
        "type": "order\x1b[31m",
        "exception": "",
        "client": "",
        "messages": messages,
        "bytes": 10 * messages,
        "sent_back": 0,
        "first_seen_ms": 60_000,
        "last_seen_ms": 120_000,
        "example": 7,
    }
    return json.dumps(row | more)


def job(**more: Any) -> str:
    outcomes = {
        "sent": 5,
        "acknowledged": 3,
        "died_again": 1,
        "waiting": 1,
        "removed": 0,
        "duplicates": 2,
        "unknown": 0,
        "stayed": {"why\x07": 2},
    }
    row: Row = {
        "id": 4,
        "kind": "redrive",
        "vhost": "/",
        "queue": "dlq",
        "to": "origin",
        "target": "",
        "state": "running",
        "why": "",
        "user": "ann",
        "started_ms": 1_000,
        "ended_ms": None,
        "looked_at": 7,
        "held": 0,
        "total": outcomes,
        "groups": {FINGERPRINT: outcomes},
    }
    return json.dumps(row | more)


class Client:
    """A member that answers what it was given, page by page, and notes what it was asked."""

    def __init__(self) -> None:
        self.pages: list[Any] = []
        self.jobs = [job()]
        self.asked: list[tuple[str, Any]] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def stream(self, name: str, request: Any) -> Iterator[Any]:
        self.asked.append((name, request))
        # One page a call, as where calls end by their time.
        yield self.pages.pop(0)

    def call(self, name: str, request: Any) -> Any:
        self.asked.append((name, request))
        if name == "ListQueueJobs":
            found = self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]
            return admin_pb2.ListQueueJobsResponse(jobs=[found])
        return admin_pb2.StartQueueJobResponse(job=job())

    @property
    def orders(self) -> list[Row]:
        return [json.loads(request.order) for _, request in self.asked if hasattr(request, "order")]


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(client, "connect", lambda _: made)
    monkeypatch.setattr(queue_jobs, "_POLL_S", 0.0)
    return made


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def preview(token: str = "", messages: int = 3, **more: Any) -> Any:
    row = {"fingerprint": FINGERPRINT, "targets": ["work"], "stays": "", "bytes": 30}
    room = {
        "leader": "n1",
        "consumers": 0,
        "ready": 1,
        "free_messages": 4,
        "free_bytes": None,
        "overflow": "reject-publish",
    }
    return admin_pb2.QueueJobPreviewPage(
        groups=[group()],
        rows=[json.dumps(row | {"messages": messages} | more)],
        targets={"work": json.dumps(room)},
        next_page_token=token,
        looked_at=messages,
        counts={"ready": 9},
    )


def test_a_triage_goes_on_by_tokens_and_adds_groups_up(member: Client) -> None:
    member.pages = [
        admin_pb2.TriagePage(groups=[group()], next_page_token="t", looked_at=3),
        admin_pb2.TriagePage(
            groups=[group(first_seen_ms=None, last_seen_ms=180_000), group("", 1)], looked_at=4
        ),
    ]
    found = run(triage.triage, "dlq", "--formatter", "csv")
    lines = found.stdout.splitlines()
    assert lines[1].startswith(f'"{FINGERPRINT}","6","0","rejected","work"')
    assert '"1970-01-01T00:01:00+00:00","1970-01-01T00:03:00+00:00"' in lines[1]
    assert lines[2].startswith('"","1"')
    assert [request.page_token for _, request in member.asked] == ["", "t"]


def test_what_steers_a_terminal_is_escaped(member: Client) -> None:
    member.pages = [admin_pb2.TriagePage(groups=[group()], looked_at=3)]
    found = run(triage.triage, "dlq")
    assert "\x1b" not in found.output
    assert "order\\x1b[31m" in found.output
    assert f"brokerctl redrive dlq --group {FINGERPRINT} --dry-run" in found.output


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage, "GROUPS_MAX", 2)
    groups = triage.Groups()
    for name in "abcda":
        groups.add(json.loads(group(name, 1)))
    assert [(row["fingerprint"], row["messages"]) for row in groups.rows()] == [
        ("a", 2),
        ("b", 1),
        ("", 2),
    ]
    assert "reason" not in groups.get("")


def test_a_dry_run_shows_targets_and_starts_nothing(member: Client) -> None:
    member.pages = [preview("t"), preview()]
    found = run(queue_jobs.redrive, "dlq", "--rate", "4", "--dry-run")
    assert "6 messages would go back, 0 stay; 2 seconds at 4 a second" in found.stdout
    assert f"{FINGERPRINT}\t6\t60\twork\tn1\t0\t1\t4\t\treject-publish" in found.stdout
    assert "no consumers are there now" in found.stderr
    assert "6 messages would come, and 4 fit (reject-publish)" in found.stderr
    assert {name for name, _ in member.asked} == {"PreviewQueueJob"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), []),
        (("--canary", "5"), ["Of each group 5 go first", "when one of those sent has died again"]),
        (("--stop-after-deaths", "3"), ["when 3 of those sent have died again"]),
    ],
)
def test_a_dry_run_says_what_stops_a_group(
    member: Client, arguments: tuple[str, ...], said: list[str]
) -> None:
    member.pages = [preview()]
    found = run(queue_jobs.redrive, "dlq", *arguments, "--dry-run")
    assert all(text in found.stdout for text in said)
    assert ("died again" in found.stdout) == bool(said)


def test_a_dry_run_of_some_asks_for_what_is_left(member: Client) -> None:
    member.pages = [preview("t"), preview("u", 1)]
    found = run(queue_jobs.redrive, "dlq", "--max", "4", "--dry-run")
    assert [order["max"] for order in member.orders] == [4, 1]
    assert "4 messages would go back" in found.stdout


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("redrive", (), {"kind": "redrive", "to": "origin"}),
        ("redrive", ("--to", "republish"), {"to": "republish"}),
        ("redrive", ("--to-queue", "q"), {"to": "queue", "target": "q"}),
        ("redrive", ("--to-exchange", ""), {"to": "exchange", "target": "", "routing_key": None}),
        (
            "redrive",
            ("--canary", "10", "--stop-after-deaths", "3", "--keep-history", "--trust-headers"),
            {"canary": 10, "stop_after_deaths": 3, "keeps_history": True, "trusts_headers": True},
        ),
        ("redrive", ("--restore-expiration",), {"restores_expiration": True}),
        (
            "move",
            ("--to-exchange", "e", "--routing-key", "k"),
            {"kind": "move", "to": "exchange", "target": "e", "routing_key": "k"},
        ),
        (
            "delete_messages",
            ("--yes", "--filter", "size > 1", "--group", "f", "--max", "2", "--rate", "7"),
            {"kind": "delete", "filter": "size > 1", "group": "f", "max": 2, "rate": 7},
        ),
    ],
)
def test_options_become_an_order(
    member: Client, command: str, arguments: tuple[str, ...], expected: Row
) -> None:
    found = run(getattr(queue_jobs, command), "dlq", *arguments)
    assert found.exit_code == 0, found.output
    assert member.asked[-1][0] == "StartQueueJob"
    [order] = member.orders
    assert order | expected == order
    assert (order["vhost"], order["queue"]) == ("/", "dlq")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("redrive", ("--to", "origin", "--to-queue", "q")),
        ("redrive", ("--routing-key", "k")),
        ("redrive", ("--to", "nowhere")),
        ("redrive", ("--canary", "0")),
        ("move", ()),
        ("move", ("--to-queue", "q", "--to-exchange", "e")),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    member: Client, command: str, arguments: tuple[str, ...]
) -> None:
    assert run(getattr(queue_jobs, command), "dlq", *arguments).exit_code == 2
    assert member.asked == []


def test_a_deletion_without_a_terminal_needs_a_yes(member: Client) -> None:
    found = run(queue_jobs.delete_messages, "dlq")
    assert "--yes" in str(found.exception)
    assert member.asked == []


@pytest.mark.parametrize(("answer", "asked"), [("y\n", 2), ("n\n", 1)])
def test_a_deletion_shows_what_goes_and_asks(
    member: Client, monkeypatch: pytest.MonkeyPatch, answer: str, asked: int
) -> None:
    monkeypatch.setattr(queue_jobs, "_is_person", lambda: True)
    member.pages = [preview(targets=[])]
    found = CliRunner().invoke(queue_jobs.delete_messages, ["dlq"], input=answer)
    assert "3 messages would be deleted" in found.stdout
    assert len(member.asked) == asked
    member.asked.clear()
    member.pages = [admin_pb2.QueueJobPreviewPage()]
    found = CliRunner().invoke(queue_jobs.delete_messages, ["dlq"])
    assert "nothing to delete" in found.stdout
    assert len(member.asked) == 1


def test_a_job_is_waited_for_and_has_a_receipt(member: Client) -> None:
    member.jobs = [job(looked_at=8), job(state="done", ended_ms=5_000)]
    found = run(queue_jobs.redrive, "dlq", "--wait")
    assert f"{FINGERPRINT}\t5\t3\t1\t1\t0\t2\t0\t2" in found.stdout
    assert "2 stayed: why\\x07" in found.stdout
    assert [name for name, _ in member.asked] == ["StartQueueJob", *["ListQueueJobs"] * 2]


def test_a_job_that_is_not_known_any_more_ends_the_wait(member: Client) -> None:
    member.jobs = [job(id=5)]
    found = run(queue_jobs.redrive, "dlq", "--wait")
    assert "not known any more" in str(found.exception)


def test_jobs_are_listed_and_stopped(member: Client) -> None:
    listed = run(queue_jobs.list_queue_jobs)
    assert "dlq\t4\tredrive\torigin" in listed.stdout
    assert FINGERPRINT not in listed.stdout
    assert FINGERPRINT in run(queue_jobs.list_queue_jobs, "dlq").stdout
    assert "dlq\t4\tredrive" in run(queue_jobs.stop_queue_job, "dlq").stdout
    as_json = json.loads(run(queue_jobs.list_queue_jobs, "--formatter", "json").stdout)
    assert as_json[0]["acknowledged"] == 3


def page(numbers: range, token: str) -> Any:
    row = {
        "number": 0,
        "state": "ready",
        "acquired_count": 0,
        "delivery_count": 0,
        "enqueued_ms": 5,
        "expires_ms": None,
        "properties": [],
        "payload": "x",
        "payload_encoding": "string",
    }
    return admin_pb2.BrowsePage(
        messages=[json.dumps(row | {"number": number}) for number in numbers],
        next_page_token=token,
        looked_at=100,
        counts={"ready": 300},
    )


def test_a_look_goes_on_by_tokens_until_it_has_enough(member: Client) -> None:
    member.pages = [page(range(3), "t"), page(range(0), "u"), page(range(3, 5), "v")]
    found = run(browse.browse, "q", "--count", "5", "--from", "4", "--filter", "size > 1")
    assert "Shown 5 of 300 looked at" in found.stdout
    assert "--page-token v" in found.stderr
    requests = [request for _, request in member.asked]
    assert [(each.count, each.page_token, getattr(each, "from")) for each in requests] == [
        (5, "", "4"),
        (2, "t", ""),
        (2, "u", ""),
    ]
    member.pages = [page(range(2), "t"), page(range(2, 3), "")]
    found = run(browse.browse, "q", "--formatter", "raw")
    assert (found.stdout, found.stderr) == ("xxx", "")
