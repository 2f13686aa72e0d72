"""What `export` writes about a broker that runs, `plan` finds to be there: nothing to write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.reconcile import drift

from brokerd.ctl import main
from brokerd.federation import shovel, upstream
from tests.integration.members import Member, cluster

pytestmark = pytest.mark.timeout(240)

_COMMON = {"vhost": "/", "durable": True, "auto_delete": False}
#: As RabbitMQ exports them: parameters without what is the default, a policy for all names.
DEFINITIONS: dict[str, Any] = {
    "users": [{"name": "web", "password_hash": "", "tags": ["monitoring"]}],
    "vhosts": [{"name": "/"}, {"name": "team"}],
    "permissions": [
        {"user": user, "vhost": "team", "configure": ".*", "write": ".*", "read": ".*"}
        for user in ("guest", "web")
    ],
    "topic_permissions": [
        {"user": "guest", "vhost": "team", "exchange": "amq.topic", "write": "^a", "read": ".*"}
    ],
    "parameters": [
        {
            "component": "federation-upstream",
            "vhost": "/",
            "name": "east",
            "value": {"uri": "amqp://127.0.0.1:1", "max-hops": 2},
        },
        {
            "component": "shovel",
            "vhost": "/",
            "name": "mover",
            "value": {
                "src-protocol": "amqp091",
                "src-uri": "amqp://",
                "src-queue": "from",
                "dest-protocol": "amqp091",
                "dest-uri": "amqp:///team",
                "dest-queue": "to",
            },
        },
    ],
    "policies": [
        {
            "vhost": "/",
            "name": "all",
            "pattern": "",
            "apply-to": "queues",
            "priority": 0,
            "definition": {"max-length": 10},
        }
    ],
    "queues": [
        {"name": "from", "arguments": {"x-queue-type": "classic"}, **_COMMON},
        {"name": "to", "arguments": {"x-queue-type": "quorum"}, **_COMMON, "vhost": "team"},
    ],
    "exchanges": [
        {"name": "in", "type": "topic", "internal": False, "arguments": {}, **_COMMON},
        # As a RabbitMQ with the plug-in exports it.
        {
            "name": "later",
            "type": "x-delayed-message",
            "internal": False,
            "arguments": {"x-delayed-type": "topic"},
            **_COMMON,
        },
    ],
    "bindings": [
        {
            "source": "in",
            "vhost": "/",
            "destination": "from",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {},
        }
    ],
}
SECRETS = {"web-login": {"username": "web", "password": "p"}, "east-uri": {"uri": "amqp://a:1"}}


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with cluster(tmp_path, 1) as members:
        yield members[0]


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = main.run(list(words))
    except SystemExit as end:
        status = int(end.code or 0)
    told = capsys.readouterr()
    return status, told.out, told.err


def test_export_and_plan_are_a_fixed_point(
    member: Member, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = ("-n", f"127.0.0.1:{member.grpc_port}")
    files = tmp_path / "files"
    files.mkdir()
    plan = ("plan", "-f", str(files), "--data-dir", str(tmp_path / "none"))
    # A fresh broker has nothing that a resource could own.
    _, text, notes = _run(capsys, *node, "export")
    (files / "all.yaml").write_text(text)
    assert "note: User guest and its permissions are left out" in notes
    assert _run(capsys, *node, *plan)[:2] == (0, "nothing would change\n")
    (tmp_path / "definitions.json").write_text(json.dumps(DEFINITIONS))
    status, _, told = _run(capsys, *node, "import_definitions", str(tmp_path / "definitions.json"))
    assert status == 0, told
    _, text, notes = _run(capsys, *node, "export")
    (files / "all.yaml").write_text(text)
    later = next(body for body in yaml.safe_load_all(text) if body["metadata"]["name"] == "later")
    assert later["spec"] == {
        "brokerRef": {"name": "broker"},
        "type": "x-delayed-message",
        "delayedType": "topic",
    }
    assert "amq.delayed" not in text, "its queue is the exchange's own"
    assert "name the BrokerCluster broker (--cluster), which is not among them" in notes
    bodies: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        for name, data in SECRETS.items()
    ]
    assert all(f"make the Secret {name}" in notes for name in SECRETS)
    bodies.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    # As kubectl reads them too.
    (files / "secrets.json").write_text(json.dumps({"kind": "List", "items": bodies}, indent="\t"))
    _, text, _ = _run(capsys, *node, *plan)
    lines = text.splitlines()
    assert [line for line in lines if "(owner only)" not in line] == []
    shown = [line.partition(" (owner only)")[0] for line in lines]
    assert shown == [
        "= vhost team",
        "= user web",
        "= permission web in team",
        "= parameter federation-upstream/east in /",
        "= parameter shovel/mover in /",
        "= policy all in /",
        "= exchange in in /",
        "= exchange later in /",
        "= queue from in /",
        "= queue to in team",
        "= binding in|queue|from|a.#| in /",
    ]


def test_what_a_parameter_leaves_out_is_what_the_broker_takes_it_for() -> None:
    """The operator knows the broker's defaults by heart, since it imports nothing of it."""
    up = {"uri": "amqp://h"}
    plain, full = (
        upstream.parse("up", up | more) for more in ({}, drift._DEFAULTS["federation-upstream"])
    )
    # Left out, it is what the other broker makes of a queue without a type: classic, as a rule.
    assert (plain.queue_type, full.queue_type) == (None, "classic")
    assert replace(plain, queue_type="classic") == full
    ends = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    assert shovel.parse("/", "s", ends) == shovel.parse("/", "s", ends | drift._DEFAULTS["shovel"])


def test_resources_of_one_name_are_told_with_both_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"brokerRef": {"name": "b"}, "type": "quorum"}
    body = {"apiVersion": "brokerd.io/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}}
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("\n" + yaml.safe_dump(body | {"spec": spec}))
    _, text, _ = _run(capsys, "plan", "-f", str(tmp_path), "--data-dir", str(tmp_path / "none"))
    assert f"wrong: {tmp_path}/b.yaml:2: Queue q is also at {tmp_path}/a.yaml:2" in text
