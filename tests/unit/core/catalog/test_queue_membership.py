"""The catalog's record of who is to hold a queue (R-QQ-23)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands, queue_membership
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import Queue
from tests.unit.core.catalog_driver import CatalogDriver

Json = dict[str, Any]
NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    for node in NODES:
        driver.do(catalog_commands.put_member(node, f"{node}:5690"))
    driver.put("queue", "q", {"type": "quorum"}, uid=5, members=["n1", "n2"])
    return driver


def want(catalog: CatalogDriver, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> Json:
    operation = catalog_commands.want_queue_members("/", "q", 5, add=add, remove=remove)
    return catalog.do(operation)


def grow(catalog: CatalogDriver, *members: str) -> Json:
    return catalog.do(catalog_commands.set_queue_members("/", "q", 5, members))


def queue(catalog: CatalogDriver) -> Queue:
    found: Queue = catalog.found("q")
    return found


def test_wanted_members_stand_until_the_group_has_them(catalog: CatalogDriver) -> None:
    """R-QQ-23."""
    assert queue(catalog).wanted_members == ["n1", "n2"]
    reply = want(catalog, add=("n3",))
    assert (reply["code"], reply["object"]["wanted_members"]) == ("OK", ["n1", "n2", "n3"])
    assert reply["object"]["members"] == ["n1", "n2"]
    assert catalog.changed() == [("+", "queue", "q")]
    assert want(catalog, add=("n3",))["code"] == "UNCHANGED"
    grow(catalog, "n1", "n2", "n3")
    assert queue(catalog).membership.wanted is None
    assert queue(catalog).wanted_members == ["n1", "n2", "n3"]


def test_later_wishes_build_on_earlier_ones(catalog: CatalogDriver) -> None:
    want(catalog, add=("n3",))
    want(catalog, remove=("n1",))
    assert queue(catalog).wanted_members == ["n2", "n3"]
    want(catalog, add=("n1",), remove=("n3",))
    assert queue(catalog).membership.wanted is None


def test_member_that_came_later_is_told_from_the_first_ones(catalog: CatalogDriver) -> None:
    """It must not begin a group of its own; its second life is another than its first."""
    assert queue(catalog).membership.is_founding
    want(catalog, add=("n3",))
    assert not queue(catalog).membership.is_founding
    grow(catalog, "n1", "n2", "n3")
    first = queue(catalog).membership.joined
    assert first == {"n3": catalog.index}
    grow(catalog, "n1", "n2")
    assert queue(catalog).membership.joined == {}
    grow(catalog, "n1", "n2", "n3")
    assert queue(catalog).membership.joined == {"n3": catalog.index} != first
    assert not queue(catalog).membership.is_founding


def test_first_members_never_begin_anew_once_a_change_was_wanted(catalog: CatalogDriver) -> None:
    want(catalog, add=("n3",))
    want(catalog, remove=("n3",))
    assert queue(catalog).membership.wanted is None
    assert not queue(catalog).membership.is_founding


def test_members_change_only_if_the_record_is_the_one_that_was_seen(
    catalog: CatalogDriver,
) -> None:
    """A leader that was deposed meanwhile must not undo what its successor did."""
    seen = queue(catalog).revision
    want(catalog, add=("n3",))
    members = ["n1", "n2", "n3"]
    operation = catalog_commands.set_queue_members("/", "q", 5, members, revision=seen)
    assert catalog.do(operation)["code"] == "PRECONDITION"
    assert queue(catalog).members == ["n1", "n2"]
    operation["revision"] = queue(catalog).revision
    assert catalog.do(operation)["code"] == "OK"


def test_what_was_taken_out_by_hand_is_remembered(catalog: CatalogDriver) -> None:
    """R-QQ-23: a target size does not bring it back; a person, or another member may."""
    want(catalog, remove=("n2",))
    want(catalog, remove=("n2",))
    assert queue(catalog).membership.excluded == ("n2",)
    want(catalog, add=("n2",))
    assert queue(catalog).membership.excluded == ()
    want(catalog, remove=("n2",))
    grow(catalog, "n1")
    catalog.do(catalog_commands.remove_member("n3"))
    assert queue(catalog).membership.excluded == ("n2",)
    catalog.do(catalog_commands.remove_member("n2"))
    assert queue(catalog).membership.excluded == ()


def test_who_leaves_the_cluster_is_not_wanted_any_more(catalog: CatalogDriver) -> None:
    """R-QQ-23: the group would wait for it for ever, and come to nothing else (seed 17000863)."""
    want(catalog, add=("n3",))
    catalog.do(catalog_commands.remove_member("n3"))
    assert queue(catalog).membership.wanted is None
    assert queue(catalog).wanted_members == ["n1", "n2"]
    want(catalog, remove=("n2",))
    catalog.do(catalog_commands.remove_member("n2"))
    assert queue(catalog).wanted_members == ["n1"], "its replica is still to go"


def test_what_a_target_size_asks_for_excludes_nobody(catalog: CatalogDriver) -> None:
    operation = catalog_commands.want_queue_members(
        "/", "q", 5, add=["n3"], remove=["n2"], is_automatic=True
    )
    assert catalog.do(operation)["code"] == "OK"
    assert queue(catalog).membership.excluded == ()
    assert queue(catalog).wanted_members == ["n1", "n3"]


# ---- members that leave to come back ------------------------------------------------------------


def renew(catalog: CatalogDriver, *nodes: str) -> Json:
    operation = catalog_commands.want_queue_members(
        "/", "q", 5, remove=nodes, is_automatic=True, comes_back=True
    )
    return catalog.do(operation)


def test_a_member_that_is_to_come_back_is_wanted_again_by_the_command_that_takes_it_out(
    catalog: CatalogDriver,
) -> None:
    """G8: nobody has to remember it, so it does not matter who ends in between."""
    assert renew(catalog, "n2")["code"] == "OK"
    assert queue(catalog).wanted_members == ["n1"]
    assert queue(catalog).membership.excluded == ()
    assert renew(catalog, "n2")["code"] == "UNCHANGED"
    grow(catalog, "n1")
    assert queue(catalog).wanted_members == ["n1", "n2"]
    assert queue(catalog).membership.returning == ()
    grow(catalog, "n1", "n2")
    assert queue(catalog).membership.wanted is None
    assert queue(catalog).membership.joined == {"n2": catalog.index}


def test_the_wish_to_come_back_survives_a_restart_of_the_catalog(catalog: CatalogDriver) -> None:
    renew(catalog, "n2")
    machine = CatalogMachine()
    machine.restore(catalog.machine.snapshot())
    restored = machine.state.queue("/", "q")
    assert restored is not None
    assert restored.membership == queue(catalog).membership
    assert restored.membership.returning == ("n2",)


def test_a_wish_to_come_back_that_comes_late_takes_back_nothing(catalog: CatalogDriver) -> None:
    """Its first copy was answered to nobody; the member is out by now, and on its way in."""
    renew(catalog, "n2")
    grow(catalog, "n1")
    assert renew(catalog, "n2")["code"] == "UNCHANGED"
    assert queue(catalog).wanted_members == ["n1", "n2"]


def test_who_is_taken_out_by_hand_does_not_come_back(catalog: CatalogDriver) -> None:
    renew(catalog, "n2")
    want(catalog, remove=("n2",))
    assert queue(catalog).membership.excluded == ("n2",)
    assert renew(catalog, "n2")["code"] == "UNCHANGED"
    grow(catalog, "n1")
    assert queue(catalog).wanted_members == ["n1"]


def test_who_is_asked_to_stay_stays(catalog: CatalogDriver) -> None:
    renew(catalog, "n2")
    want(catalog, add=("n2",))
    assert queue(catalog).membership.wanted is None
    assert queue(catalog).membership.returning == ()


def test_a_returning_member_comes_beside_what_else_is_wanted(catalog: CatalogDriver) -> None:
    renew(catalog, "n2")
    want(catalog, add=("n3",))
    assert queue(catalog).wanted_members == ["n1", "n3"]
    grow(catalog, "n1", "n2", "n3")
    assert queue(catalog).membership.returning == ("n2",)
    grow(catalog, "n1", "n3")
    assert queue(catalog).wanted_members == ["n1", "n3", "n2"]


def test_a_node_that_leaves_the_cluster_does_not_come_back(catalog: CatalogDriver) -> None:
    renew(catalog, "n2")
    catalog.do(catalog_commands.remove_member("n2"))
    assert queue(catalog).membership.returning == ()
    grow(catalog, "n1")
    assert queue(catalog).wanted_members == ["n1"]


def test_the_last_member_cannot_leave_to_come_back(catalog: CatalogDriver) -> None:
    assert renew(catalog, "n1", "n2")["text"] == "a queue needs at least one member"


def test_members_that_are_to_come_back_count_against_the_bound() -> None:
    nodes = [f"n{i}" for i in range(queue_membership.MEMBERS_MAX + 1)]
    fault = queue_membership.fault_of_wish(nodes[1:], [], nodes, ["n0"])
    assert fault == "a queue has at most 64 members"
    assert queue_membership.fault_of_wish(nodes[1:], [], nodes, ["n1"]) is None


@pytest.mark.parametrize(
    ("add", "remove", "text"),
    [
        (("n9",), (), "'n9' is no member of the cluster; its members are n1, n2, n3, n4"),
        ((), ("n1", "n2"), "a queue needs at least one member"),
    ],
)
def test_wishes_that_cannot_be(
    catalog: CatalogDriver, add: tuple[str, ...], remove: tuple[str, ...], text: str
) -> None:
    before = queue(catalog).membership
    reply = want(catalog, add=add, remove=remove)
    assert (reply["code"], reply["amqp"], reply["text"]) == ("REFUSED", 406, text)
    assert queue(catalog).membership == before
    assert before == queue_membership.Membership(created=before.created)


def test_a_queue_has_a_bounded_number_of_members() -> None:
    nodes = [f"n{i}" for i in range(queue_membership.MEMBERS_MAX + 1)]
    assert queue_membership.fault_of_wish(nodes[1:], nodes, nodes) is None
    fault = queue_membership.fault_of_wish(nodes, nodes, nodes)
    assert fault == "a queue has at most 64 members"


def test_wishes_are_for_quorum_queues_that_are_there(catalog: CatalogDriver) -> None:
    catalog.put("queue", "c", {"type": "classic"}, uid=6, members=["n1"])
    operation = catalog_commands.want_queue_members("/", "c", 6, add=["n2"])
    assert catalog.do(operation)["text"] == "a classic queue has one member, for good"
    assert catalog.do(operation | {"uid": 7})["code"] == "NOT_FOUND"
    assert catalog.do(operation | {"name": "d"})["code"] == "NOT_FOUND"


@pytest.mark.parametrize("field", ["add", "remove"])
def test_names_of_nodes_are_texts(catalog: CatalogDriver, field: str) -> None:
    operation = catalog_commands.want_queue_members("/", "q", 5)
    reply = catalog.do(operation | {field: [1]})
    assert (reply["code"], reply["text"]) == (
        "REFUSED",
        f"operation want_queue_members: {field} is wrong",
    )
    assert catalog.do(operation | {field: "n1"})["code"] == "REFUSED"


def test_where_a_queue_is_going_survives_a_snapshot(catalog: CatalogDriver) -> None:
    want(catalog, add=("n3", "n4"), remove=("n1",))
    grow(catalog, "n1", "n2", "n3")
    machine = CatalogMachine()
    machine.restore(catalog.machine.snapshot())
    copy = machine.state.queue("/", "q")
    assert copy is not None
    assert copy.membership == queue(catalog).membership
    assert copy.membership.wanted == ["n2", "n3", "n4"]
    assert copy.membership.excluded == ("n1",)
    assert machine.snapshot() == catalog.machine.snapshot()


def test_each_life_of_a_replica_has_a_log_of_its_own(catalog: CatalogDriver) -> None:
    """design/replication.md §2.4: a group's uid is in every record of the log."""
    seen = set()
    for _ in range(3):
        grow(catalog, "n1", "n2", "n3")
        seen.add(queue_membership.log_uid(5, queue(catalog).membership, "n3"))
        assert queue_membership.log_uid(5, queue(catalog).membership, "n1") == 5
        grow(catalog, "n1", "n2")
    assert len(seen) == 3
    assert all(1 << 16 < uid < 1 << 63 for uid in seen)


def test_a_replica_is_as_old_as_its_queue_or_as_the_change_that_brought_it() -> None:
    """G8: a disk that is newer can have no past with it, whatever else changes in the record."""
    made = queue_membership.Membership(created=5)
    wished = queue_membership.after_wish(made, ["n1"], ["n1", "n2"], ["n2"], [], False)
    grown = queue_membership.after_change(wished, ["n1"], ["n1", "n2"], 9)
    for known in (made, wished, grown):
        assert queue_membership.since(known, "n1") == 5
        assert queue_membership.restored(known.stored()) == known
    assert queue_membership.since(grown, "n2") == 9
    of_an_earlier_release = queue_membership.restored({})
    assert queue_membership.since(of_an_earlier_release, "n1") == 0
    assert of_an_earlier_release.stored() == {}
