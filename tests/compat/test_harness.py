"""The harness of the compatibility tests: the table of differences is complete, the servers are
those that are meant.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.compat.rabbitmq_server import VERSION
from tests.compat.servers import DIFFERENCE, Closed, Differs, Server, closed_by, used_differences
from tests.integration.members import REPOSITORY, eventually
from tests.integration.raw_client import publish

PAGE = REPOSITORY / "docs" / "compatibility.md"
HEADING = "## Differences measured against 3.10.8"
COLUMNS = ["id", "what", "RabbitMQ 3.10.8", "brokerd", "rule", "why"]


def rows() -> list[list[str]]:
    """Return the cells of the table of differences."""
    _, _, after = PAGE.read_text().partition(HEADING)
    section = after.partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    assert table[0] == COLUMNS
    return table[2:]


def test_every_difference_of_a_test_is_in_the_table_and_every_row_has_a_test() -> None:
    """O-10: no other difference exists."""
    ids = [row[0] for row in rows()]
    assert len(ids) == len(set(ids))
    assert set(ids) == used_differences()


def test_every_row_says_what_which_rule_and_why() -> None:
    for row in rows():
        assert len(row) == len(COLUMNS), row
        assert DIFFERENCE.fullmatch(row[0]), row
        assert all(row), row
        assert re.search(r"\b(R|SEC|O)-", row[4]), row


def test_a_difference_holds_two_answers() -> None:
    with pytest.raises(AssertionError, match="no difference"):
        Differs(1, 1, "D-9")
    with pytest.raises(AssertionError):
        Differs(1, 2, "difference")


def test_servers_are_who_they_say(server: Server) -> None:
    """R-CON-3: product and version."""
    with server.connected() as connection:
        properties = connection._impl.server_properties
    assert ("brokerd" in str(properties)) == (server.name == "brokerd")
    if server.name == "rabbitmq":
        assert (properties["product"], properties["version"]) == ("RabbitMQ", VERSION)


def row_with_policy(server: Server, vhost: str) -> dict[str, Any] | None:
    row = server.admin.queues(vhost)["q"]
    return row if (row.get("policy"), row.get("operator_policy")) == ("p", "op") else None


def test_both_can_be_told_the_same_from_outside(server: Server, vhost: str, channel: Any) -> None:
    """R-VH-3, R-POL-1, R-TP-1, R-PERM-1: the doors that the other tests go through."""
    admin = server.admin
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    channel.queue_bind("q", "x", "a.#")
    admin.add_user("harness", "harness", "monitoring")
    admin.set_permissions(vhost, "harness", "^$", "^$", "^$")
    admin.set_topic_permissions(vhost, "harness", "x", "^a", "^a")
    admin.clear_permissions(vhost, "harness")
    admin.set_vhost_limit(vhost, "max-queues", 7)
    admin.set_user_limit("harness", "max-connections", 1)
    admin.delete_user("harness")
    admin.set_policy(vhost, "p", "^q$", {"message-ttl": 60_000}, "queues", 3)
    admin.set_policy(vhost, "op", "^q$", {"max-length": 5}, "queues", 3, operator=True)
    # RabbitMQ's listing lags behind by half a second.
    row = eventually(lambda: row_with_policy(server, vhost), "policy in the listing")
    assert (row["durable"], row["auto_delete"], row["exclusive"]) == (True, False, False)
    assert (row["type"], row["vhost"]) == ("classic", vhost)
    assert row["arguments"]["x-max-length"] == 5
    admin.clear_policy(vhost, "p")
    admin.clear_policy(vhost, "op", operator=True)
    assert admin.exchanges(vhost)["x"]["type"] == "topic"
    [bound] = [row for row in admin.bindings(vhost) if row["source"] == "x"]
    assert (bound["destination"], bound["destination_type"]) == ("q", "queue")
    assert (bound["routing_key"], bound["arguments"]) == ("a.#", {})


def test_the_raw_client_sees_how_a_server_ends_a_channel(server: Server, vhost: str) -> None:
    """R-ERR-1."""
    with server.raw(vhost) as raw:
        raw.open(1)
        raw.send(1, publish(1, "nope", "k", b""))
        text = f"NOT_FOUND - no exchange 'nope' in vhost '{vhost}'"
        assert closed_by(raw) == Closed("channel", 404, text, (60, 40))
