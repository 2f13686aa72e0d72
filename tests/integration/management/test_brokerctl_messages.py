"""brokerctl publish, get, declare and bind, and listings that are sorted and filtered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import REPOSITORY, Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

#: Of brokerctl when a message goes nowhere.
UNAVAILABLE = 69


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("ctl"), 1) as members:
        yield members[0]


@pytest.fixture(scope="module")
def ctl(member: Member) -> Ctl:
    return Ctl(f"127.0.0.1:{member.grpc_port}")


def test_a_message_goes_by_exchange_and_binding_to_a_queue_and_is_taken(
    member: Member, ctl: Ctl
) -> None:
    ctl("declare", "exchange", "shop", "--type", "topic")
    said = ctl("declare", "queue", "orders", "--type", "quorum", "--argument", "x-max-length=5")
    assert "It has 0 messages and 0 consumers." in said
    ctl("bind", "shop", "orders", "-k", "order.*")
    said = ctl(
        *("publish", "--exchange", "shop", "--routing-key", "order.new", "--payload", "héllo"),
        *("--property", "priority=7", "--property", "type=new"),
        *("--header", "n=5", "--header", 'text="5"', "--header", 'list=[true,"a"]'),
    )
    assert "was routed and is confirmed" in said
    with member.connect() as connection:
        channel = connection.channel()
        method, properties, body = channel.basic_get("orders")
        assert (method.exchange, method.routing_key, body) == (
            "shop",
            "order.new",
            "héllo".encode(),
        )
        assert (properties.priority, properties.type, properties.delivery_mode) == (7, "new", 2)
        assert properties.headers == {"n": 5, "text": "5", "list": [True, "a"]}
        channel.basic_nack(method.delivery_tag)
        [row] = map(json.loads, ctl("get", "orders", "--formatter", "json").splitlines())
        assert row["payload"] == "héllo"
        assert row["properties"]["headers"].items() >= {"n": 5, "text": "5"}.items()
        assert (row["properties"]["headers"]["list"], row["redelivered"]) == ([True, "a"], True)

        def count() -> int:
            found: int = channel.queue_declare("orders", passive=True).method.message_count
            return found

        eventually(lambda: count() == 1, "it is back")
        assert "1 messages, acknowledged." in ctl("get", "orders", "--ack-mode", "ack")
        eventually(lambda: count() == 0, "it is gone")
        assert "0 messages, acknowledged." in ctl("get", "orders", "--ack-mode", "ack")
    ctl("unbind", "shop", "orders", "-k", "order.*")
    refused = ctl.run("publish", "-e", "shop", "-k", "order.new", "--payload", "x")
    assert refused.returncode == UNAVAILABLE
    assert "was not routed" in refused.stderr
    assert "312 NO_ROUTE" in refused.stderr


def test_what_is_rejected_dies_and_bodies_are_bytes(ctl: Ctl, tmp_path: Path) -> None:
    ctl("declare", "queue", "dead")
    ctl(
        *("declare", "queue", "dying", "--argument", "x-dead-letter-exchange="),
        *("--argument", "x-dead-letter-routing-key=dead"),
    )
    body = bytes(range(256))
    file = tmp_path / "body"
    file.write_bytes(body)
    ctl("publish", "-k", "dying", "--file", str(file))
    ctl("publish", "-k", "dying", "--file", "-", stdin="from a pipe")
    assert "2 messages, rejected." in ctl("get", "dying", "--count", "5", "--ack-mode", "reject")
    eventually(
        lambda: ctl("-s", "list_queues", "messages", "--filter", "name == 'dead'") == "2\n", "died"
    )
    program = [sys.executable, "-c", "from brokerd.ctl.main import main; main()"]
    raw = subprocess.run(
        [*program, "get", "dead", "--count", "2", "-o", "raw", "--ack-mode", "ack"],
        capture_output=True,
        check=True,
        cwd=REPOSITORY,
        env=os.environ | {"BROKERD_ADDRESS": ctl.address},
    )
    assert raw.stdout == body + b"from a pipe"


def test_mistakes_are_told_with_what_to_do(ctl: Ctl) -> None:
    for words, text in (
        (("publish", "-k", "q"), "--payload or --file"),
        (("publish", "--payload", "x", "--property", "colour=red"), "--header takes all else"),
        (("publish", "--payload", "x", "--property", "priority=high"), "is no number"),
        (("publish", "--payload", "x", "--header", "nothing"), "takes NAME=VALUE"),
        (("publish", "--payload", "x", "-e", "nowhere"), "no exchange 'nowhere' in vhost '/'"),
        (("get", "nowhere"), "no queue 'nowhere' in vhost '/'"),
        (("bind", "amq.direct", "nowhere"), "no queue 'nowhere' in vhost '/'"),
        (("-p", "nowhere", "declare", "queue", "q"), "nowhere"),
        (("declare", "queue", "q", "--argument", "x-max-length=many"), "x-max-length"),
        (("list_queues", "--filter", "mesages > 1"), "write messages?"),
        (("list_queues", "--sort", "size"), "size"),
    ):
        done = ctl.run(*words)
        assert done.returncode != 0, words
        assert text in done.stderr, (words, done.stderr)


def test_listings_are_sorted_and_filtered(ctl: Ctl) -> None:
    for number, name in enumerate(("s-b", "s-a", "s-c")):
        ctl("declare", "queue", name)
        for _ in range(number):
            ctl("publish", "-k", name, "--payload", "x")
    mine = ("--filter", "name.startsWith('s-')")
    assert ctl("-s", "list_queues", "name", *mine, "--sort", "name") == "s-a\ns-b\ns-c\n"
    assert ctl("-s", "list_queues", "name", *mine, "--sort", "-messages") == "s-c\ns-a\ns-b\n"
    some = ("--filter", "name.startsWith('s-') && messages > 0 && consumers == 0")
    rows = yaml.safe_load(ctl("list_queues", *some, "--sort", "messages", "-o", "yaml"))
    assert rows == [{"name": "s-a", "messages": 1}, {"name": "s-c", "messages": 2}]
    assert ctl("list_exchanges", "name", "-o", "yaml", "--filter", "type == 'nothing'") == "[]\n"
    assert "amq.topic" in ctl("list_exchanges", "--filter", "type == 'topic'")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            ("list_queues", "messages_un"),
            {"messages_unacknowledged", "messages_unacknowledged_ram"},
        ),
        (("list_queues", "--sort", "messages_un"), {"messages_unacknowledged"}),
        (("purge_queue", "comp"), {"completed"}),
        (("browse", "comp"), {"completed"}),
        (("publish", "--exchange", "amq.rabbitmq.t"), {"amq.rabbitmq.trace"}),
    ],
)
def test_names_of_queues_and_columns_are_completed(
    ctl: Ctl, words: tuple[str, ...], found: set[str]
) -> None:
    ctl("declare", "queue", "completed")
    done = subprocess.run(
        [sys.executable, "-c", "from brokerd.ctl.main import main; main()"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env=os.environ
        | {
            "_BROKERCTL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("brokerctl", *words)),
            "COMP_CWORD": str(len(words)),
            "BROKERD_ADDRESS": ctl.address,
        },
    )
    assert found <= {line.partition(",")[2] for line in done.stdout.splitlines()}


def test_a_user_without_rights_is_refused_as_by_amqp(ctl: Ctl) -> None:
    ctl("add_user", "small", "secret")
    ctl("set_permissions", "small", "^$", "^$", "^$")
    ctl("declare", "queue", "guarded")
    for words in (
        ("publish", "-k", "guarded", "--payload", "x"),
        ("get", "guarded"),
        ("declare", "queue", "more"),
        ("bind", "amq.direct", "guarded"),
    ):
        done = ctl.run("--user", "small", "--password", "secret", *words)
        assert done.returncode != 0, words
        assert "refused for user 'small'" in done.stderr
