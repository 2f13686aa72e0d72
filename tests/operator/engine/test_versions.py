"""Watches, listings and answers to writes arrive in any order: the newest body counts.

The races of a relisting with changes, one by one; then any interleaving of a watch with listings
against a model of an API server.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from brokerd_operator.engine.cache import ResourceCache
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key, key_of
from brokerd_operator.engine.versions import Version, Versions, number_of, version_of
from brokerd_operator.sources.api import ApiError, Page
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.listing import Listing
from brokerd_operator.specs import registry
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.resources import resource

KEY = Key("Queue", "default", "q")


@dataclass
class Server:
    """The API server as far as versions go: objects, a revision, and what happened."""

    revision: int = 0
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[bool, dict[str, Any]]] = field(default_factory=list)
    uids: int = 0

    def put(self, name: str, length: int) -> None:
        """Create or edit."""
        self.revision += 1
        body = copy.deepcopy(self.objects.get(name))
        if body is None:
            self.uids += 1
            reference = {"name": "prod", "kind": "BrokerConnection"}
            body = resource("Queue", name, brokerRef=reference)
            body["metadata"] |= {"uid": f"u{self.uids}", "generation": 0}
        body["spec"]["maxLength"] = length
        body["metadata"]["generation"] += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        self.objects[name] = body
        self.events.append((False, body))

    def delete(self, name: str) -> None:
        body = self.objects.pop(name, None)
        if body is None:
            return
        self.revision += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.revision)
        self.events.append((True, body))


class Reads:
    """What `Listing` asks of the API, with the moments at which the answers go out."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.between: Any = lambda: None
        self.after_read: Any = lambda: None
        self.error: ApiError | None = None

    async def pages(self, path: str, selector: str = "") -> AsyncIterator[Page]:
        if self.error is not None:
            raise self.error
        version = str(self.server.revision)
        if not path.endswith("/queues"):
            yield Page([], version, is_first=True)
            return
        found = list(self.server.objects.values())
        self.between()
        yield Page(found[:1], version, is_first=True)
        yield Page(found[1:], version, is_first=False)

    async def get(self, path: str) -> dict[str, Any] | None:
        found = self.server.objects.get(path.rpartition("/")[2])
        self.after_read()
        return found


class Bench:
    """A listing and an engine over the model; `watch` delivers what happened."""

    def __init__(self) -> None:
        self.server = Server()
        self.reads = Reads(self.server)
        # Nothing is reconciled here: neither a store nor a driver is asked.
        self.engine = Engine(None, None)  # type: ignore[arg-type]
        put, remove = self.engine.put, self.engine.remove
        store = KubernetesStore(self.reads, put, remove, (), None, None)  # type: ignore[arg-type]
        self.listing = Listing(self.reads, self.engine, store)  # type: ignore[arg-type]
        self.delivered = 0

    def watch(self, count: int = 10**6) -> None:
        for is_deletion, body in self.server.events[self.delivered :][:count]:
            self.tell(is_deletion, body)
            self.delivered += 1

    def tell(self, is_deletion: bool, body: dict[str, Any]) -> None:
        if is_deletion:
            self.engine.remove(key_of(body), version_of(body))
        else:
            self.engine.put(body)

    def list(self) -> None:
        asyncio.run(self.listing.take("default"))

    def known(self) -> dict[str, Any]:
        found = {}
        for key in self.engine.cache.all_keys():
            entry = self.engine.cache.get(key)
            assert entry is not None
            found[key.name] = entry.body
        return found


def test_resource_made_during_a_listing_stays() -> None:
    bench = Bench()

    def meanwhile() -> None:
        bench.server.put("q", 1)
        bench.watch()

    bench.reads.between = meanwhile
    bench.list()
    assert set(bench.known()) == {"q"}


def test_edit_during_a_listing_is_not_reverted() -> None:
    bench = Bench()
    bench.server.put("q", 1)
    bench.watch()

    def meanwhile() -> None:
        bench.server.put("q", 2)
        bench.watch()

    bench.reads.between = meanwhile
    bench.list()
    assert bench.known()["q"]["spec"]["maxLength"] == 2


def test_deletion_during_a_listing_is_not_undone() -> None:
    bench = Bench()
    bench.server.put("q", 1)
    bench.watch()

    def meanwhile() -> None:
        bench.server.delete("q")
        bench.watch()

    bench.reads.between = meanwhile
    bench.list()
    assert bench.known() == {}


def test_resource_deleted_while_no_watch_ran_is_found_gone() -> None:
    bench = Bench()
    bench.server.put("q", 1)
    bench.watch()
    bench.server.delete("q")
    bench.list()
    assert bench.known() == {}


def test_listing_that_misses_a_resource_is_not_believed_alone() -> None:
    """A page that was left out, an API server behind the others."""
    bench = Bench()
    bench.server.put("q", 1)
    bench.watch()
    body = bench.server.objects.pop("q")
    bench.reads.between = lambda: bench.server.objects.update(q=body)
    bench.list()
    assert set(bench.known()) == {"q"}


def test_resource_made_anew_during_the_direct_read_stays() -> None:
    bench = Bench()
    bench.server.put("q", 1)
    bench.watch()
    bench.server.delete("q")

    def meanwhile() -> None:
        bench.server.put("q", 2)
        bench.watch()

    bench.reads.after_read = meanwhile
    bench.list()
    assert bench.known()["q"]["spec"]["maxLength"] == 2


def test_resource_made_anew_replaces_the_one_of_its_name() -> None:
    bench = Bench()
    bench.server.put("q", 1)
    bench.server.delete("q")
    bench.server.put("q", 3)
    first, deletion, second = bench.server.events
    # kopf works on resources of different uids at the same time.
    for is_deletion, body in (first, second, deletion, first):
        bench.tell(is_deletion, body)
    assert bench.known()["q"]["spec"]["maxLength"] == 3


NAMES = st.sampled_from(("a", "b"))
STEP = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(1, 9)),
    st.tuples(st.just("delete"), NAMES, st.just(0)),
    st.tuples(st.just("watch"), st.just(""), st.integers(1, 3)),
    st.tuples(st.just("again"), st.just(""), st.integers(0, 30)),
)
#: What happens, then what happens between the moment of a listing and its arrival, and between
#: that of a direct read and its arrival.
STEPS = st.lists(STEP, max_size=6)
PLAN = st.lists(st.tuples(STEPS, STEPS, STEPS), max_size=6)


def _play(bench: Bench, steps: list[Any]) -> None:
    for what, name, number in steps:
        if what == "put":
            bench.server.put(name, number)
        elif what == "delete":
            bench.server.delete(name)
        elif what == "watch":
            bench.watch(number)
        elif bench.delivered:
            # The same news again: a watch that was resumed from an earlier place.
            bench.tell(*bench.server.events[number % bench.delivered])


@given(plan=PLAN)
@settings(max_examples=300, deadline=None)
def test_any_interleaving_of_watch_and_listings_ends_with_the_state_of_the_server(
    plan: list[tuple[list[Any], list[Any], list[Any]]],
) -> None:
    bench = Bench()
    for before, during, after_read in plan:
        _play(bench, before)
        bench.reads.between = lambda steps=during: _play(bench, steps)
        bench.reads.after_read = lambda steps=after_read: _play(bench, steps)
        bench.list()
    bench.watch()
    assert bench.known() == bench.server.objects


def test_bodies_without_a_version_always_count() -> None:
    versions = Versions()
    assert number_of("x1") is None
    assert number_of(None) is None
    for _ in range(2):
        assert versions.takes(KEY, Version("u", None))
        assert versions.takes_deletion(KEY, None)
    assert versions.takes(KEY, Version("u", None))


def test_remembered_deletions_are_bounded() -> None:
    versions = Versions(gone_max=2)
    names = [Key("Queue", "default", str(number)) for number in range(3)]
    for number, key in enumerate(names):
        assert versions.takes(key, Version(key.name, number))
        assert versions.takes_deletion(key, Version(key.name, number))
    assert versions.takes(names[0], Version("0", 0)), "the oldest is forgotten"
    assert not versions.takes(names[2], Version("2", 2))


def test_names_of_users_are_of_those_that_there_are() -> None:
    """They are an index: a walk over all resources in each pass was most of the work of many."""
    cache = ResourceCache()

    def put(version: int, **spec: Any) -> None:
        body = resource("User", "web", **spec)
        body["metadata"] |= {"uid": "u", "resourceVersion": str(version), "generation": version}
        cache.put(body)

    put(1)
    users = cache.users()
    assert users == {"default/web": "web"}
    put(2, name="webshop")
    assert users == {"default/web": "webshop"}
    put(3, name=7)
    assert users == {}, "one that is invalid has no name"
    put(4)
    assert users == {"default/web": "web"}
    cache.remove(Key("User", "default", "web"), Version("u", 5))
    assert users == {}


def test_deletion_that_is_no_news_wakes_nobody() -> None:
    cache = ResourceCache()
    assert cache.remove(KEY) is None
    assert {cache.version(Key(kind, "n", "x")) for kind in registry.KINDS} == {None}


def test_a_body_that_is_told_twice_is_kept_once() -> None:
    """Listed, and told by a watch: of ten thousand resources the second copies are let go."""
    server, cache = Server(), ResourceCache()
    server.put("q", 1)
    listed = server.objects["q"]
    assert cache.put(listed)[0]
    assert cache.put(copy.deepcopy(listed)) == (False, set())
    entry = cache.get(key_of(listed))
    assert entry is not None
    assert entry.body is listed
    server.put("q", 2)
    assert cache.put(server.objects["q"])[0]
