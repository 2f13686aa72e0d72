"""Endpoints that export and import definitions, in RabbitMQ's format.

What the format means is core/catalog/definitions_json.py's; what an import does to objects that are
there already is what `brokerctl import_definitions` does: they stay, and what cannot change is
logged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from brokerd.core.catalog import definitions_json, unsupported
from brokerd.core.catalog.definitions_json import Wanted
from brokerd.server.access import compatibility
from brokerd.server.catalog import admin_objects
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management import changes, encoding, identity, parameters, vhosts
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    bad_request,
    no_content,
    unavailable,
)
from brokerd.server.management.routes import Right, Route

log = logging.getLogger(__name__)

#: Operations between two looks at what else waits.
BATCH = 256
#: Mistakes that are said; the rest is counted.
SHOWN_MAX = 20
#: There, different and not to be changed by a file: the topology goes on as it is.
_KEPT = (changes.Result.IMMUTABLE, changes.Result.PRECONDITION)
#: What definitions of one vhost have, in RabbitMQ's order.
_OF_VHOST = ("parameters", "policies", "queues", "exchanges", "bindings")
_WITHOUT_VHOST = ("queues", "exchanges", "bindings")
_ALL = ("users", "vhosts", "permissions", "topic_permissions", *_OF_VHOST)


# ---- out ----------------------------------------------------------------------------------------


async def _export(call: Call) -> Answer:
    """With hashes and the URIs of upstreams as they are (SEC-20: for administrators)."""
    log.warning("definitions with passwords exported by user '%s'", call.caller.user)
    head = _versions(call)
    objects = await _objects(call, None)
    found = definitions_json.exported(objects, head["rabbit_version"], with_transient=True)
    found["global_parameters"] = parameters.global_rows(call)
    if call.as_4_3:
        name = identity.name_of(call)
        head["rabbitmq_definition_format"] = "cluster"
        head["original_cluster_name"] = name
        head["explanation"] = f"Definitions of cluster '{name}'"
    return await _answer(call, head, found, (*_ALL, "global_parameters"))


def _versions(call: Call) -> Json:
    version = compatibility.compatible_version(call.services.profile)
    return {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": "brokerd",
        "product_version": version,
    }


async def _export_vhost(call: Call) -> Answer:
    if call.vhost not in call.services.catalog.view.vhosts:
        raise bad_request("vhost_not_found")
    head = _versions(call)
    objects = await _objects(call, call.vhost)
    found = definitions_json.exported(objects, head["rabbit_version"], with_transient=True)
    for section in _WITHOUT_VHOST:
        found[section] = [
            {key: value for key, value in row.items() if key != "vhost"} for row in found[section]
        ]
    if not call.as_4_3:
        return await _answer(call, {"rabbit_version": head["rabbit_version"]}, found, _OF_VHOST)
    record = changes.existing(call, "vhost", "", call.vhost)
    shown = vhosts.row(call, record)
    head |= {
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": call.vhost,
        "explanation": f"Definitions of virtual host '{call.vhost}'",
        "description": shown["description"],
        "metadata": shown["metadata"],
        "limits": record.spec()["limits"],
    }
    return await _answer(call, head, found, _OF_VHOST)


async def _objects(call: Call, vhost: str | None) -> list[Wanted]:
    """Return what there is, of one revision but for what changes while it is written."""
    view, keyring = call.services.catalog.view, call.services.objects.keyring
    records = [
        record for kind in sorted(admin_objects.KINDS) for record in view.records(kind, vhost)
    ]
    if vhost is not None:
        # Its limits are parameters in the file.
        records += [record for record in view.records("vhost") if record.name == vhost]
    found: list[Wanted] = []
    with_types = call.services.profile.management_as_4_3
    async for part in in_chunks(range(len(records))):
        for record in map(records.__getitem__, part):
            spec = admin_objects.exported(
                record, keyring, with_passwords=True, with_types=with_types
            )
            found.append((record.kind, record.vhost, record.name, spec))
    return found


async def _answer(call: Call, head: Json, found: Json, sections: tuple[str, ...]) -> Answer:
    """Put sections together one by one: each may be megabytes."""
    wanted = [name for name in call.query.get("columns", "").split(",") if name]
    parts = [
        (await encoding.encode(name) + b":" + await encoding.encode(value)).decode()
        for name, value in [*head.items(), *((name, found[name]) for name in sections)]
        if not wanted or name in wanted
    ]
    headers = {}
    download = call.query.get("download")
    if download:
        name = "".join(c for c in download if c.isascii() and (c.isalnum() or c in "-_."))
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return Answer(text="{" + ",".join(parts) + "}", headers=headers)


# ---- in -----------------------------------------------------------------------------------------


async def _import(call: Call) -> Answer:
    """All that can be made is made; what is refused is a 400 that names it.

    With skip_unsupported=true what is not here is left out and listed.
    """
    body = await call.body()
    vhost = call.parts.get("vhost")
    if vhost is not None:
        call.check_vhost()
    known = set(call.services.catalog.view.vhosts)
    # Of 100,000 queues it takes most of a second.
    body, everything = await asyncio.to_thread(_understood, body, vhost, known, call.as_4_3)
    wanted, left_out = unsupported.taken(everything, skips=call.is_on("skip_unsupported"))
    globals_wanted = body.get("global_parameters", [])
    log.warning("definitions are imported by user '%s'", call.caller.user)
    mistakes = await _apply(call, _with_owner(call, wanted))
    mistakes += await _apply_limits(
        call, body, {name for kind, _, name, _ in wanted if kind == "vhost"}
    )
    mistakes += await _apply_globals(call, globals_wanted)
    if mistakes:
        more = len(mistakes) - SHOWN_MAX
        shown = mistakes[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else [])
        raise bad_request("; ".join(shown))
    for line in left_out:
        log.warning("definitions: left out: %s", line)
    return Answer(value={"left_out": left_out}) if left_out else no_content()


def _understood(
    body: Json, vhost: str | None, known: set[str], as_4_3: bool
) -> tuple[Json, list[Wanted]]:
    """Return what is to be made of a body, and the objects of it; HttpError: 400.

    vhost: only what is in it counts; known: the vhosts that there are.
    """
    if vhost is not None:
        # Whatever else is in the file, or it names: only this vhost's objects.
        body = {name: _in_vhost(body.get(name), vhost) for name in _OF_VHOST}
    _check_vhosts(body, known, as_4_3)
    try:
        return body, definitions_json.operations(body, vhost or "/")
    except definitions_json.BadDefinitions as error:
        raise bad_request(str(error)) from error


def _in_vhost(entries: Any, vhost: str) -> Any:
    if not isinstance(entries, list):
        return entries or []
    return [entry | {"vhost": vhost} if isinstance(entry, dict) else entry for entry in entries]


def _check_vhosts(body: Json, known: set[str], as_4_3: bool) -> None:
    """Refuse what would be made in a vhost that is not there, before anything is made."""
    for entry in _entries(body, "vhosts"):
        known.add(str(entry.get("name")))
    for section in (*_OF_VHOST, "permissions", "topic_permissions"):
        for entry in _entries(body, section):
            vhost = entry.get("vhost", "undefined")
            if not isinstance(vhost, str) or vhost not in known:
                if not as_4_3:
                    raise bad_request(["no_such_vhost", vhost])
                first = f'Please create virtual host "{vhost}" prior to importing definitions.'
                raise bad_request(first)


def _entries(body: Json, section: str) -> list[Json]:
    found = body.get(section, [])
    if not isinstance(found, list):
        raise bad_request(f"{section}: expected a list")
    return [entry for entry in found if isinstance(entry, dict)]


def _with_owner(call: Call, wanted: list[Wanted]) -> list[Wanted]:
    """Let who makes a vhost enter it, as there, unless the definitions say what he may do."""
    view, user = call.services.catalog.view, call.caller.user
    if not call.caller.is_user_of(view):
        return wanted
    said = {vhost for kind, vhost, name, _ in wanted if kind == "permission" and name == user}
    made = [name for kind, _, name, _ in wanted if kind == "vhost" and name not in view.vhosts]
    return wanted + [("permission", name, user, vhosts.ALL) for name in made if name not in said]


async def _apply(call: Call, wanted: list[Wanted]) -> list[str]:
    mistakes = []
    for start in range(0, len(wanted), BATCH):
        batch = [
            changes.upsert(kind, vhost, name, spec)
            for kind, vhost, name, spec in wanted[start : start + BATCH]
        ]
        results = await changes.apply(call, batch)
        for operation, result in zip(batch, results, strict=True):
            where = f" in vhost '{operation.vhost}'" if operation.vhost else ""
            line = f"{operation.kind} '{operation.name}'{where}: {result.message}"
            if result.code == changes.Result.UNAVAILABLE:
                # The catalog does not answer; the rest would wait as long.
                raise unavailable(line)
            if result.code in _KEPT:
                log.warning("definitions: kept as it is: %s", line)
            elif result.code not in changes.DONE:
                mistakes.append(line)
    return mistakes


async def _apply_limits(call: Call, body: Json, made: set[str]) -> list[str]:
    """Set limits of vhosts that the definitions do not describe themselves."""
    mistakes = []
    for entry in _entries(body, "parameters"):
        vhost = entry.get("vhost")
        if entry.get("component") != parameters.LIMITS or vhost in made:
            continue
        try:
            limits = parameters.limits_of(entry.get("value"))
            await changes.modify(call, "vhost", str(vhost), parameters.with_limits(limits))
        except HttpError as error:
            mistakes.append(f"limits of vhost '{vhost}': {error.reason}")
    return mistakes


async def _apply_globals(call: Call, entries: Any) -> list[str]:
    if not isinstance(entries, list):
        return ["global_parameters: expected a list"]
    mistakes = []
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or "value" not in entry:
            mistakes.append("global_parameters: expected name and value")
        elif name not in parameters.OWN:
            try:
                await parameters.set_global(call, name, entry["value"])
            except HttpError as error:
                mistakes.append(f"global parameter '{name}': {error.reason}")
    return mistakes


_PATH, _RIGHT = "/api/definitions", Right.ADMINISTRATOR

ROUTES = (
    Route("GET", _PATH, _RIGHT, _export, "All definitions, with hashes and passwords of upstreams"),
    Route(
        "POST",
        _PATH,
        _RIGHT,
        _import,
        "Make what they describe; `skip_unsupported=true` leaves out what is not here and lists it",
    ),
    Route("GET", f"{_PATH}/{{vhost}}", _RIGHT, _export_vhost, "Definitions of a vhost"),
    Route("POST", f"{_PATH}/{{vhost}}", _RIGHT, _import, "Make what they describe, in this vhost"),
)
