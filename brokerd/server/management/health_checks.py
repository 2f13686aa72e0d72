"""Endpoints for probes: 200 with {"status":"ok"}, or 503 with what is wrong.

Each says what the member that is asked knows; only the queues without a leader are asked for from
all members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from brokerd.cluster.groups import placement
from brokerd.core.catalog import patterns
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.federation.errors import ChannelClosed, ClientError
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog import member_states
from brokerd.server.listings import rows as listings
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management import listing, messages
from brokerd.server.management.call import Answer, Call, Json, bad_request, not_found
from brokerd.server.management.routes import Right, Route
from brokerd.server.members import quorum_calls

#: The queue of the aliveness test, which stays, as there.
ALIVENESS = "aliveness-test"
ALIVENESS_S, POLL_S = 10.0, 0.02
#: Queues in one answer.
QUEUES_MAX = 1_000
_DAYS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
#: A century: more is no warning.
DAYS_MAX = 36_500
#: Names that clients have for the listeners of listings/rows.py.
_PROTOCOLS = {"amqps": "amqp/ssl", "amqp091": "amqp", "prometheus": "http/prometheus"}


def ok(**more: Any) -> Answer:
    """Return that all is well."""
    return Answer(value={"status": "ok"} | more)


def failed(reason: str, **more: Any) -> Answer:
    """Return a 503."""
    return Answer(503, {"status": "failed", "reason": reason} | more)


# ---- alarms -------------------------------------------------------------------------------------


async def _alarms(call: Call) -> Answer:
    found = _alarm_rows(call, call.services.listed.runtime.alarms.nodes())
    return failed("There are alarms in effect in the cluster", alarms=found) if found else ok()


async def _local_alarms(call: Call) -> Answer:
    node = call.services.node
    found = _alarm_rows(call, [node])
    return failed("There are alarms in effect on the node", alarms=found) if found else ok()


def _alarm_rows(call: Call, nodes: Iterable[str]) -> list[Json]:
    alarms = call.services.listed.runtime.alarms
    return [
        {"node": node, "resource": resource}
        for node in nodes
        for resource in sorted(alarms.on(node))
    ]


# ---- majorities ---------------------------------------------------------------------------------


async def _quorum_critical(call: Call) -> Answer:
    services = call.services
    if len(services.catalog.view.members()) < 2:
        return ok(reason="single node cluster")
    me = NodeId(services.node)
    groups = [group for group in listings.group_health(services.listed) if group.voters != (me,)]
    critical = placement.critical_groups(groups, me)
    if not critical:
        return ok()
    queues = [
        _queue_row(queue)
        for uid in critical[:QUEUES_MAX]
        if uid != CATALOG_GROUP and (queue := services.listed.queues.queue_of(uid)) is not None
    ]
    what = "the catalog and " if CATALOG_GROUP in critical else ""
    return failed(
        f"There are {what}quorum queues that would lose their quorum if the target node is shut "
        "down",
        queues=queues,
    )


def _queue_row(queue: Queue) -> Json:
    return {
        "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost}'",
        "name": queue.name,
        "virtual_host": queue.vhost,
        "type": queue.type,
    }


async def _mirrors(_: Call) -> Answer:
    """There are no mirrored classic queues."""
    return ok()


async def _catalog(_: Call) -> Answer:
    """The catalog stands for RabbitMQ's metadata store; before it is read no user can log in."""
    return ok()


async def _without_leaders(call: Call) -> Answer:
    services = call.services
    view = services.catalog.view
    vhost, pattern = call.parts.get("vhost"), call.parts.get("pattern", ".*")
    if vhost is not None and vhost not in view.vhosts:
        raise not_found()
    problem = patterns.error(pattern)
    if problem is not None:
        raise bad_request(f"pattern: {problem}")
    led, _ = await quorum_calls.leaders(services.members)
    found = []
    records = [record for name in call.visible_vhosts() for record in view.records("queue", name)]
    async for part in in_chunks(range(len(records))):
        for record in map(records.__getitem__, part):
            assert isinstance(record, Queue)
            if record.type == "quorum" and record.uid not in led:
                found.append(record)
    named = await listing.named(found, _pattern(pattern), lambda queue: str(queue.name))
    queues = [_queue_row(queue) for queue in named]
    if not queues:
        return ok()
    return failed(
        "There are quorum queues without an elected leader",
        count=len(queues),
        queues=queues[:QUEUES_MAX],
    )


def _pattern(pattern: str) -> dict[str, str]:
    return {"page": "1", "name": pattern, "use_regex": "true"}


# ---- this member --------------------------------------------------------------------------------


def _why_not_in_service(call: Call) -> str:
    services = call.services
    state = member_states.state_of(services.catalog.view, services.node)
    if state:
        return f"this member is in state {state}"
    endpoints = services.listed.runtime.endpoints
    if endpoints is None or not endpoints.is_open:
        return "AMQP is not served"
    return ""


async def _in_service(call: Call) -> Answer:
    reason = _why_not_in_service(call)
    return failed(reason) if reason else ok()


async def _ready(call: Call) -> Answer:
    reason = _why_not_in_service(call)
    if not reason and call.services.listed.groups.leader_of(CATALOG_GROUP) is None:
        reason = "the catalog has no leader: a majority of the members is not there"
    return failed(reason) if reason else ok()


async def _vhosts(_: Call) -> Answer:
    """A vhost runs wherever its member does."""
    return ok()


async def _below_limit(_: Call) -> Answer:
    """Connections have their own bound (limits.connections), which refuses with its reason."""
    return ok()


async def _node(call: Call) -> Answer:
    """The check of old: one word about this member."""
    if call.parts.get("node", call.services.node) != call.services.node:
        raise not_found()
    if call.services.listed.runtime.alarms.on(call.services.node):
        return failed("There are alarms in effect on the node")
    return await _in_service(call)


def _listeners(call: Call) -> list[Json]:
    found: list[Json] = listings.own(call.services.listed)["listeners"]
    return found


async def _port(call: Call) -> Answer:
    text = call.parts["port"]
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise bad_request("Invalid port")
    port, ports = int(text), [row["port"] for row in _listeners(call)]
    if port in ports:
        return ok(port=port)
    return failed("No active listener", missing=port, ports=ports)


async def _protocol(call: Call) -> Answer:
    asked = call.parts["protocol"]
    wanted = _PROTOCOLS.get(asked, asked)
    found = [row["protocol"] for row in _listeners(call)]
    if call.as_4_3:
        # Clients of 4.3 expect them once each.
        found = sorted(set(found))
    if wanted in found:
        return ok(protocols=found) if call.as_4_3 else ok(protocol=asked)
    missing = [wanted] if call.as_4_3 else wanted
    return failed("No active listener", missing=missing, protocols=found)


async def _certificates(call: Call) -> Answer:
    within, unit = call.parts["within"], call.parts["unit"]
    if unit not in _DAYS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    if not within.isascii() or not within.isdigit() or len(within) > 6:
        raise bad_request("Invalid expiration value.")
    days = min(int(within) * _DAYS[unit], DAYS_MAX)
    config = call.services.config.tls
    files = {Path(name) for name in (config.cert_file, config.ca_file) if name}
    limit = datetime.now(UTC) + timedelta(days=days)
    expiring = await asyncio.to_thread(_expiring, sorted(files), limit)
    return failed("Certificates expiring", expired=expiring) if expiring else ok()


def _expiring(files: list[Path], limit: datetime) -> list[Json]:
    found = []
    for file in files:
        try:
            certificates = x509.load_pem_x509_certificates(file.read_bytes())
        except (OSError, ValueError) as error:
            found.append({"file": str(file), "problem": str(error)})
            continue
        found += [
            {
                "file": str(file),
                "subject": certificate.subject.rfc4514_string(),
                "not_after": certificate.not_valid_after_utc.isoformat(),
            }
            for certificate in certificates
            if certificate.not_valid_after_utc < limit
        ]
    return found


async def _aliveness(call: Call) -> Answer:
    """Declare a queue, publish to it and get from it, over AMQP and as the caller."""
    if call.vhost not in call.services.catalog.view.vhosts:
        raise not_found()
    try:
        async with asyncio.timeout(ALIVENESS_S), messages.open_channel(call) as channel:
            await channel.call(methods.QueueDeclare(queue=ALIVENESS))
            channel.publish("", ALIVENESS, BasicProperties().encode(), b"test_message")
            get = methods.BasicGet(queue=ALIVENESS, no_ack=True)
            # It may be on its way to the queue still.
            while not isinstance(await channel.call(get), methods.BasicGetOk):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    except ChannelClosed as error:
        raise bad_request(str(error)) from error
    except ClientError as error:
        return failed(str(error))
    except TimeoutError:
        return failed(f"no message came through within {ALIVENESS_S:.0f} s")
    return ok()


_CHECKS = "/api/health/checks"
_LEADERS = f"{_CHECKS}/quorum-queues-without-elected-leaders"
_ANY = Right.MANAGEMENT

ROUTES = (
    Route(
        "GET",
        "/api/aliveness-test/{vhost}",
        Right.VHOST,
        _aliveness,
        "A message goes through a queue of the vhost",
    ),
    Route("GET", f"{_CHECKS}/alarms", _ANY, _alarms, "No alarm on any member"),
    Route("GET", f"{_CHECKS}/local-alarms", _ANY, _local_alarms, "No alarm on this member"),
    Route(
        "GET",
        f"{_CHECKS}/node-is-quorum-critical",
        _ANY,
        _quorum_critical,
        "Nothing would lose its majority without this member",
    ),
    Route("GET", f"{_CHECKS}/node-is-mirror-sync-critical", _ANY, _mirrors, "No mirrors: ok"),
    Route(
        "GET",
        f"{_CHECKS}/metadata-store/initialized",
        _ANY,
        _catalog,
        "The catalog is there (4.x)",
    ),
    Route(
        "GET",
        f"{_CHECKS}/metadata-store/initialized/with-data",
        _ANY,
        _catalog,
        "The same (4.x)",
    ),
    Route("GET", f"{_CHECKS}/is-in-service", _ANY, _in_service, "Not in maintenance, serves AMQP"),
    Route(
        "GET",
        f"{_CHECKS}/ready-to-serve-clients",
        _ANY,
        _ready,
        "In service, and the catalog has a leader",
    ),
    Route(
        "GET",
        f"{_CHECKS}/below-node-connection-limit",
        _ANY,
        _below_limit,
        "Takes connections",
    ),
    Route("GET", "/api/healthchecks/node", _ANY, _node, "The check of old: this member is well"),
    Route("GET", "/api/healthchecks/node/{node}", _ANY, _node, "The same, of this member by name"),
    Route("GET", f"{_CHECKS}/virtual-hosts", _ANY, _vhosts, "All vhosts run"),
    Route("GET", f"{_CHECKS}/port-listener/{{port}}", _ANY, _port, "Something listens on a port"),
    Route(
        "GET",
        f"{_CHECKS}/protocol-listener/{{protocol}}",
        _ANY,
        _protocol,
        "A protocol is served: `amqp`, `amqps`, `http`, `https`, `grpc`, `clustering`",
    ),
    Route(
        "GET",
        f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}",
        _ANY,
        _certificates,
        "No certificate runs out within so many `days`, `weeks`, `months`, `years`",
    ),
    Route(
        "GET", f"{_LEADERS}/all-vhosts", _ANY, _without_leaders, "All quorum queues have leaders"
    ),
    Route(
        "GET",
        f"{_LEADERS}/all-vhosts/pattern/{{pattern}}",
        _ANY,
        _without_leaders,
        "The same of those whose name matches",
    ),
    Route(
        "GET",
        f"{_LEADERS}/vhost/{{vhost}}",
        Right.VHOST_VISIBLE,
        _without_leaders,
        "The same in a vhost",
    ),
    Route(
        "GET",
        f"{_LEADERS}/vhost/{{vhost}}/pattern/{{pattern}}",
        Right.VHOST_VISIBLE,
        _without_leaders,
        "The same of those in a vhost whose name matches",
    ),
)
