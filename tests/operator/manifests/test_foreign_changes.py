"""What others write into the operator's objects: tolerated beside its own, repaired within it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from brokerd_operator.manifests import naming
from brokerd_operator.sources.cluster_objects import (
    ClusterObjects,
    NameConflict,
    differences,
    marked,
)

from tests.operator.manifests.test_manifests import context

Json = dict[str, Any]


def manifest() -> Json:
    container = {"name": "broker", "image": "b:2", "env": [{"name": "A", "value": "1"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "a", "namespace": "n"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


class Admitting:
    """An API server with one admission step; it takes fields of others along."""

    def __init__(self, admit: Callable[[Json], None]) -> None:
        self.admit = admit
        self.live: Json = {}
        self.foreign: Json | None = None
        self.dry = 0

    async def apply(self, applied: Json, *, is_dry: bool = False) -> Json:
        made = copy.deepcopy(applied)
        if self.foreign is not None:
            env(made).append(self.foreign)
        self.admit(made)
        made["metadata"]["resourceVersion"] = "2" if is_dry else "1"
        made["status"] = {"replicas": 3}
        self.dry += is_dry
        if not is_dry:
            self.live = made
        return made


def env(body: Json) -> list[Json]:
    found: list[Json] = body["spec"]["template"]["spec"]["containers"][0]["env"]
    return found


def mirror(body: Json) -> None:
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["image"] = f"mirror/{container['image']}"


def sidecar(body: Json) -> None:
    body["spec"]["template"]["spec"]["containers"].append({"name": "proxy", "image": "p:1"})


async def _applied(api: Any) -> ClusterObjects:
    objects = ClusterObjects(api)
    assert await objects.pending(manifest(), manifest()), "it was never applied"
    await api.apply(marked(manifest()))
    return objects


@pytest.mark.parametrize("admit", [lambda body: None, mirror, sidecar])
async def test_what_admission_makes_of_an_object_is_no_difference(
    admit: Callable[[Json], None],
) -> None:
    api = Admitting(admit)
    objects = await _applied(api)
    assert await objects.pending(manifest(), api.live) == []
    changed = manifest()
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "b:3"
    found = await objects.pending(changed, api.live)
    assert "spec.template.spec.containers[broker].image" in found


async def test_an_entry_of_somebody_elses_is_no_difference_and_one_that_is_gone_is() -> None:
    api = Admitting(lambda body: None)
    objects = await _applied(api)
    before = api.dry
    assert await objects.pending(manifest(), api.live) == []
    assert api.dry == before, "what is equal costs no request"
    api.foreign = {"name": "TEAM", "value": "x"}
    env(api.live).append(api.foreign)
    assert await objects.pending(manifest(), api.live) == []
    del env(api.live)[0]
    path = "spec.template.spec.containers[broker].env[A]"
    assert await objects.pending(manifest(), api.live) == [path]
    # An earlier manifest's: it goes only by applying, though all of this one is there.
    api.live["metadata"]["annotations"]["brokerd.io/applied-hash"] = "older"
    found = await objects.pending(manifest(), api.live)
    assert "metadata.annotations.brokerd.io/applied-hash" in found


@pytest.mark.parametrize("annotations", [{}, {"brokerd.io/adopt": "orders"}])
async def test_an_object_that_another_controller_owns_is_not_taken_over(
    annotations: dict[str, str],
) -> None:
    """The API server would refuse a second one, in words that name neither cause nor remedy."""
    owner = {"kind": "Release", "name": "shop", "uid": "x", "controller": True}
    api: Any = Owned({"metadata": {"ownerReferences": [owner], "annotations": annotations}})
    service = naming.metadata(context(), "orders")
    wanted = {"apiVersion": "v1", "kind": "Service", "metadata": service}
    with pytest.raises(NameConflict, match="Service orders belongs to Release shop"):
        await ClusterObjects(api).apply(context(), wanted)
    # Of a BrokerCluster of this name before, which is gone.
    owner.update(kind="BrokerCluster", name="orders")
    await ClusterObjects(api).apply(context(), wanted)
    assert api.applied == ["orders"]


class Owned:
    """An API server that has one object."""

    def __init__(self, live: Json) -> None:
        self.live = live
        self.applied: list[str] = []

    async def get(self, path: str) -> Json:
        return self.live

    async def apply(self, manifest: Json, *, is_dry: bool = False) -> Json:
        if not is_dry:
            self.applied.append(manifest["metadata"]["name"])
        return manifest


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"]),
        ({"a": 1}, {}, ["a"]),
        ({}, {"a": 1}, ["a"]),
        ({"a": [1]}, {"a": [2]}, ["a"]),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "x", "v": 2}]}, ["a[x].v"]),
        ({"a": [{"name": "x"}]}, {"a": [{"name": "x"}, {"name": "y"}]}, ["a[y]"]),
        ({"a": [{"name": "x"}, {"name": "y"}]}, {"a": [{"name": "y"}, {"name": "x"}]}, ["a"]),
        ({"a": [{"v": 1}]}, {"a": [{"v": 2}]}, ["a"]),
        ({"a": None}, {"a": {"b": 1}}, ["a"]),
    ],
)
def test_differences_are_told_by_their_paths(
    before: Json, after: Json, expected: list[str]
) -> None:
    assert differences(before, after) == expected
