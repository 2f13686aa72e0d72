"""Endpoints about runtime parameters: of federation and shovels by vhost, and global ones.

URIs with a password are shown to administrators only; a definition that is written without its URI
keeps the one that is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import Record
from brokerd.core.catalog.catalog_specs import SPEC_BYTES_MAX
from brokerd.core.catalog.names import canonical_json
from brokerd.federation import definitions, shovel
from brokerd.server.catalog import cluster_name, sealed_parameters
from brokerd.server.management import changes, listing, policies
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    bad_request,
    no_content,
    not_found,
)
from brokerd.server.management.routes import Right, Route
from brokerd.server.management.vhosts import number

COMPONENTS = (definitions.UPSTREAM, definitions.UPSTREAM_SET, shovel.COMPONENT)
#: Of the catalog's settings, those that are global parameters.
GLOBAL = "global_parameter "
#: Global parameters that are the broker's own.
CLUSTER_ID = "internal_cluster_id"
#: An import of another cluster's definitions leaves these as they are.
OWN = (CLUSTER_ID, "cluster_name")
GLOBALS_MAX = 1_000
#: RabbitMQ has them as parameters as well.
LIMITS, OPERATOR_POLICY = "vhost-limits", "operator_policy"


def row(call: Call, record: Record) -> Json:
    """Return a parameter as the caller may see it."""
    component, _, name = record.name.partition("/")
    spec = sealed_parameters.exported(
        record.name,
        record.vhost,
        record.spec(),
        call.services.objects.keyring,
        with_passwords=call.caller.is_administrator,
    )
    return {"value": spec["value"], "vhost": record.vhost, "component": component, "name": name}


def _rows(call: Call) -> list[Json]:
    view = call.services.catalog.view
    rows: list[Json] = []
    for vhost in sorted(view.vhosts) if "vhost" not in call.parts else [call.vhost]:
        if not call.may_enter(vhost):
            continue
        rows += [row(call, record) for record in view.records("parameter", vhost)]
        limits = (view.spec("vhost", "", vhost) or {}).get("limits")
        if limits:
            rows.append(_as_parameter(LIMITS, "limits", vhost, limits))
        for record in view.records("operator_policy", vhost):
            rows.append(_as_parameter(OPERATOR_POLICY, record.name, vhost, record.spec()))
    return rows


def _as_parameter(component: str, name: str, vhost: str, value: Json) -> Json:
    return {"value": value, "vhost": vhost, "component": component, "name": name}


async def _list(call: Call) -> Answer:
    if "vhost" in call.parts and call.vhost not in call.services.catalog.view.vhosts:
        raise not_found()
    component = call.parts.get("component")
    rows = [row for row in _rows(call) if component in (None, row["component"])]
    return Answer(value=await listing.whole(rows, call.query, ("vhost", "name")))


def _names(call: Call) -> tuple[str, str]:
    return call.parts["component"], call.parts["name"]


async def _get(call: Call) -> Answer:
    component, name = _names(call)
    for found in _rows(call):
        if (found["component"], found["name"]) == (component, name):
            return Answer(value=listing.chosen(found, listing.columns_of(call.query)))
    raise not_found()


async def _put(call: Call) -> Answer:
    component, name = _names(call)
    call.check_vhost()
    value = (await call.needed("value"))["value"]
    if component == "policy":
        raise bad_request("policies may not be set using this method")
    if component in (LIMITS, OPERATOR_POLICY):
        return await _put_other(call, component, name, value)
    if component not in COMPONENTS:
        raise bad_request(f"Validation failed\n\ncomponent {component} not found\n")
    operation = changes.upsert(
        "parameter",
        call.vhost,
        f"{component}/{name}",
        {"value": value},
        confirmed=call.is_on("confirm"),
    )
    try:
        return await changes.put(call, operation)
    except HttpError as error:
        if error.status != 400:
            raise
        # Clients look for these words.
        raise bad_request(f"Validation failed\n\n{error.reason}\n", error.error) from error


async def _put_other(call: Call, component: str, name: str, value: Any) -> Answer:
    """Limits and operator policies belong to administrators by whichever path."""
    if not call.caller.is_administrator:
        raise changes.not_administrator()
    if component == OPERATOR_POLICY:
        if not isinstance(value, dict):
            raise bad_request("value: expected an object")
        spec = policies.spec_of(value, OPERATOR_POLICY)
        return await changes.put(call, changes.upsert(OPERATOR_POLICY, call.vhost, name, spec))
    await changes.modify(call, "vhost", call.vhost, with_limits(limits_of(value)))
    return no_content()


def limits_of(value: Any) -> Json:
    """Return the limits of a vhost; an empty list stands for none, as there.  HttpError: 400."""
    if value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request("value: expected an object")
    return {key: number(key, limit) for key, limit in value.items()}


def with_limits(limits: Json) -> Callable[[Json], Json]:
    """Return the change that replaces all limits."""

    def change(spec: Json) -> Json:
        return spec | {"limits": limits}

    return change


async def _delete(call: Call) -> Answer:
    component, name = _names(call)
    if component == OPERATOR_POLICY:
        if not call.caller.is_administrator:
            raise changes.not_administrator()
        return await changes.delete(call, OPERATOR_POLICY, call.vhost, name)
    if component == LIMITS:
        if not call.caller.is_administrator:
            raise changes.not_administrator()
        await changes.modify(call, "vhost", call.vhost, with_limits({}))
        return no_content()
    return await changes.delete(call, "parameter", call.vhost, f"{component}/{name}")


# ---- global ones --------------------------------------------------------------------------------


def global_rows(call: Call) -> list[Json]:
    """Return the global parameters, the broker's own among them."""
    view = call.services.catalog.view
    found = {
        record.name.removeprefix(GLOBAL): record.spec()["value"]
        for record in view.records("setting")
        if record.name.startswith(GLOBAL)
    }
    given = view.setting(cluster_name.SETTING)
    if given:
        found["cluster_name"] = given
    found[CLUSTER_ID] = view.cluster_id
    return [{"name": name, "value": found[name]} for name in sorted(found)]


async def set_global(call: Call, name: str, value: Any) -> None:
    """Set a global parameter; HttpError: 400."""
    if name == CLUSTER_ID:
        raise bad_request(f"{CLUSTER_ID} cannot be changed")
    if name == cluster_name.SETTING:
        problem = (
            cluster_name.problem(value) if isinstance(value, str) else f"{name}: must be a text"
        )
        if problem is not None:
            raise bad_request(problem)
        await call.objects.write(catalog_commands.set_setting(name, value))
        return
    if value is None:
        raise bad_request("value: null is none")
    _check_name(name)
    if len(canonical_json(value)) > SPEC_BYTES_MAX:
        raise bad_request(f"value: larger than {SPEC_BYTES_MAX} bytes")
    known = {row["name"] for row in global_rows(call)}
    if name not in known and len(known) >= GLOBALS_MAX:
        raise bad_request(f"more than {GLOBALS_MAX} global parameters")
    reply = await call.objects.write(catalog_commands.set_setting(GLOBAL + name, value))
    if reply["code"] not in (catalog_commands.OK, catalog_commands.UNCHANGED):
        raise bad_request(reply["text"])


def _check_name(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise bad_request("a name that is no UTF-8") from error
    if not 0 < size <= 255 - len(GLOBAL):
        raise bad_request(f"a name has 1 to {255 - len(GLOBAL)} bytes")


async def _global_list(call: Call) -> Answer:
    return Answer(value=await listing.whole(global_rows(call), call.query, ("name",)))


def _global(call: Call) -> Json:
    for found in global_rows(call):
        if found["name"] == call.parts["name"]:
            return found
    raise not_found()


async def _global_get(call: Call) -> Answer:
    return Answer(value=listing.chosen(_global(call), listing.columns_of(call.query)))


async def _global_put(call: Call) -> Answer:
    name = call.parts["name"]
    value = (await call.needed("value"))["value"]
    is_there = any(row["name"] == name for row in global_rows(call))
    await set_global(call, name, value)
    return Answer(204 if is_there else 201)


async def _global_delete(call: Call) -> Answer:
    name = _global(call)["name"]
    if name == CLUSTER_ID:
        raise bad_request(f"{CLUSTER_ID} cannot be changed")
    setting = name if name == cluster_name.SETTING else GLOBAL + name
    await call.objects.write(catalog_commands.set_setting(setting, None))
    return no_content()


_ALL, _ONE = "/api/parameters", "/api/parameters/{component}/{vhost}/{name}"
_GLOBALS, _GLOBAL = "/api/global-parameters", "/api/global-parameters/{name}"
_RIGHT = Right.POLICYMAKER

ROUTES = (
    Route("GET", _ALL, _RIGHT, _list, "All parameters of the caller's vhosts"),
    Route("GET", f"{_ALL}/{{component}}", _RIGHT, _list, "Parameters of a component"),
    Route("GET", f"{_ALL}/{{component}}/{{vhost}}", _RIGHT, _list, "The same of one vhost"),
    Route("GET", _ONE, _RIGHT, _get, "One parameter"),
    Route(
        "PUT",
        _ONE,
        _RIGHT,
        _put,
        f"Set it: `value`; components are {', '.join(f'`{each}`' for each in COMPONENTS)}.  What "
        "would lose messages needs `confirm=true`",
    ),
    Route("DELETE", _ONE, _RIGHT, _delete, "Delete it"),
    Route("GET", _GLOBALS, _RIGHT, _global_list, "Global parameters"),
    Route("GET", _GLOBAL, _RIGHT, _global_get, "One of them"),
    Route("PUT", _GLOBAL, _RIGHT, _global_put, "Set it: `value`"),
    Route("DELETE", _GLOBAL, _RIGHT, _global_delete, "Delete it"),
)
