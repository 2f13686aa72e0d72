"""Endpoints about policies and operator policies."""

from __future__ import annotations

from brokerd.core.catalog.catalog_objects import Record
from brokerd.server.management import changes, listing
from brokerd.server.management.call import (
    Answer,
    Call,
    Handler,
    HttpError,
    Json,
    bad_request,
    not_found,
)
from brokerd.server.management.routes import Right, Route

_FIELDS = ("pattern", "apply-to", "definition", "priority")


def row(record: Record) -> Json:
    """Return a policy as RabbitMQ shows it."""
    spec = record.spec()
    return {"vhost": record.vhost, "name": record.name} | {key: spec[key] for key in _FIELDS}


def spec_of(body: Json, kind: str) -> Json:
    """Return a policy's spec from a body; its own checks are the catalog's.  HttpError: 400."""
    spec = {key: body[key] for key in _FIELDS if body.get(key) is not None}
    if not isinstance(spec.get("definition"), dict):
        raise bad_request("definition: expected an object")
    if kind == "operator_policy" and spec.get("apply-to") == "all":
        # RabbitMQ's default, which can only mean queues.
        spec["apply-to"] = "queues"
    return spec


def _of(kind: str) -> tuple[Handler, Handler, Handler, Handler]:
    async def list_all(call: Call) -> Answer:
        view = call.services.catalog.view
        if "vhost" in call.parts and call.vhost not in view.vhosts:
            raise not_found()
        rows = [
            row(record) for vhost in call.visible_vhosts() for record in view.records(kind, vhost)
        ]
        return Answer(value=await listing.whole(rows, call.query, ("priority",)))

    async def get(call: Call) -> Answer:
        found = row(changes.existing(call, kind, call.vhost, call.parts["name"]))
        return Answer(value=listing.chosen(found, listing.columns_of(call.query)))

    async def put(call: Call) -> Answer:
        call.check_vhost()
        spec = spec_of(await call.needed("pattern", "definition"), kind)
        try:
            operation = changes.upsert(kind, call.vhost, call.parts["name"], spec)
            return await changes.put(call, operation)
        except HttpError as error:
            if error.status == 400:
                # Clients look for these words.
                error.reason = f"Validation failed\n\n{error.reason}\n"
            raise

    async def delete(call: Call) -> Answer:
        return await changes.delete(call, kind, call.vhost, call.parts["name"])

    return list_all, get, put, delete


def _routes(kind: str, folder: str, plural: str, writer: Right) -> tuple[Route, ...]:
    list_all, get, put, delete = _of(kind)
    path, one = f"/api/{folder}", f"/api/{folder}/{{vhost}}/{{name}}"
    reader = Right.POLICYMAKER if writer is Right.POLICYMAKER else Right.VHOST_VISIBLE
    return (
        Route("GET", path, Right.MANAGEMENT, list_all, f"All {plural} that the caller may see"),
        Route("GET", f"{path}/{{vhost}}", Right.VHOST_VISIBLE, list_all, "Those of a vhost"),
        Route("GET", one, reader, get, f"One of the {plural}"),
        Route(
            "PUT",
            one,
            writer,
            put,
            "Make or change it: `pattern`, `definition`, `priority`, `apply-to`",
        ),
        Route("DELETE", one, writer, delete, "Delete it"),
    )


ROUTES = (
    *_routes("policy", "policies", "policies", Right.POLICYMAKER),
    *_routes("operator_policy", "operator-policies", "operator policies", Right.ADMINISTRATOR),
)
