"""Shovels on their way into the catalog: the verdict of the member that proposes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.server.catalog import admin_objects, federation_parameters, sealed_parameters
from brokerd.server.catalog.keyring import Keyring
from tests.unit.core.catalog_driver import CatalogDriver

NAME = "shovel/s"
FAR = "amqp://user:hunter2@far"
VALUE = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": FAR, "dest-queue": "r"}


@dataclass
class Room:
    """federation_parameters.Room of a member with a key."""

    catalog: CatalogDriver
    keyring: Keyring
    profile: Profile

    @property
    def view(self) -> CatalogState:
        return self.catalog.view


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def problem(catalog: CatalogDriver, value: Any, name: str = NAME) -> str | None:
    room = Room(catalog, Keyring([bytes(range(32))]), Profile())
    return federation_parameters.problem(room, "/", name, value)


def put(catalog: CatalogDriver, value: Any) -> str:
    """Set a shovel as the Admin service does."""
    assert problem(catalog, value) is None
    operation = catalog_commands.batch(
        [catalog_commands.put("parameter", "/", NAME, {"value": value}, cause="admin")]
    )
    sealed_parameters.seal(operation, catalog.view, Keyring([bytes(range(32))]))
    (reply,) = catalog.do(operation)["results"]
    return str(reply["code"])


def opened(catalog: CatalogDriver) -> Any:
    found = catalog.view.parameters("/", "shovel")
    return sealed_parameters.of_vhost("/", "shovel", found, Keyring([bytes(range(32))]))["s"]


def test_both_uris_are_sealed_and_listed_without_passwords(catalog: CatalogDriver) -> None:
    """SEC-20: the catalog's snapshot, listings and exports hold no password of a shovel."""
    value = VALUE | {"src-uri": [FAR, "amqp://near"]}
    assert put(catalog, value) == catalog_commands.OK
    assert b"hunter2" not in catalog.machine.snapshot()
    assert opened(catalog) == value
    record = catalog.view.get("parameter", "/", NAME)
    assert record is not None
    ring = Keyring([bytes(range(32))])
    listed = json.loads(admin_objects.listing(record, ring).spec)["value"]
    assert listed == value | {"src-uri": ["amqp://far", "amqp://near"], "dest-uri": "amqp://far"}
    shown = sealed_parameters.exported(NAME, "/", record.spec(), ring, with_passwords=False)
    assert shown["value"] == {"src-queue": "q", "dest-queue": "r"}
    full = sealed_parameters.exported(NAME, "/", record.spec(), ring, with_passwords=True)
    assert full["value"] == value


def test_an_import_without_passwords_keeps_those_that_are_there(catalog: CatalogDriver) -> None:
    put(catalog, VALUE)
    assert put(catalog, {"src-queue": "other", "dest-uri": None}) == catalog_commands.OK
    assert opened(catalog) == {"src-uri": "amqp://", "src-queue": "other", "dest-uri": FAR}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"src-queue": "q"}, "src-uri is missing"),
        (VALUE | {"zork": 1}, "unknown key 'zork'"),
        ([], "the definition must be a table"),
        (VALUE | {"src-uri": "sealed:1:abc"}, "src-uri: uri is encrypted with key abc"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_set(
    catalog: CatalogDriver, value: Any, text: str
) -> None:
    found = problem(catalog, value)
    assert found is not None
    assert text in found
