"""Composition root: builds the parts of one member in order; nothing is assigned afterwards.

What all stand on, who may come in, messages, members, what the host tells; and, apart, what
outsiders connect to.  app.py gives log and host; tests/simulation/cluster builds members here, too.
"""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.cluster.peer import join_request
from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.config import BrokerConfig
from brokerd.core.profiles import Profile
from brokerd.federation.supervisor import Supervisor
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.access import tokens
from brokerd.server.access.admission import Admission
from brokerd.server.access.authentication import Authenticator
from brokerd.server.access.cluster_alarms import ClusterAlarms
from brokerd.server.access.connections import Connections
from brokerd.server.access.login_records import LoginRecords
from brokerd.server.access.password_checker import PasswordChecker
from brokerd.server.access.revocation import Revocation
from brokerd.server.access.shared_counts import SharedCounts
from brokerd.server.amqp.connection import ClientConnection
from brokerd.server.amqp.listener import AmqpListener
from brokerd.server.amqp.ports import ChannelServices, ConnectionServices
from brokerd.server.application_env import Variables
from brokerd.server.audit_log import AuditLog
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.catalog.member_catalog import MemberCatalog
from brokerd.server.catalog.member_objects import MemberObjects
from brokerd.server.catalog_events import CatalogEvents
from brokerd.server.catalog_events import Listeners as CatalogListeners
from brokerd.server.endpoints import Endpoints
from brokerd.server.grpc.admin_service import AdminService
from brokerd.server.grpc.grpc_server import GrpcServer, Servicers
from brokerd.server.grpc.health_service import HealthService
from brokerd.server.grpc.message_service import MessageService
from brokerd.server.grpc.ports import AdminServices, StreamServices
from brokerd.server.grpc.rpc_auth import Callers
from brokerd.server.http_server import HttpServer
from brokerd.server.lifecycle import Lifecycle
from brokerd.server.listings import (
    browse_filters,
    client_calls,
    dead_letter_rows,
    job_targets,
    jobs,
    look_guard,
    memory_breakdown,
    target_rooms,
    triage_pages,
)
from brokerd.server.listings.browses import Browses
from brokerd.server.listings.job_ports import QueueJobs
from brokerd.server.listings.totals import MemberTotals
from brokerd.server.listings.triages import Triages
from brokerd.server.loop.tasks import Tasks, log_failure
from brokerd.server.loop.timers import DeadlineWheel
from brokerd.server.management import door as management
from brokerd.server.management import member_figures
from brokerd.server.management import table as management_table
from brokerd.server.management.figures import Figures
from brokerd.server.management.ports import ManagementServices
from brokerd.server.management.rates import Rates
from brokerd.server.management.row_cache import RowCache
from brokerd.server.member_events import EventListeners, MemberEvents, Receive
from brokerd.server.members import browse_calls, federation_calls, kept_catalog, quorum_calls
from brokerd.server.members.catalog_members import CatalogMembers
from brokerd.server.members.consumed_queues import ConsumedQueues
from brokerd.server.members.disk_watch import DiskWatch
from brokerd.server.members.group_membership import GroupMembership
from brokerd.server.members.home_members import HomeMembers
from brokerd.server.members.joining import Ask, Joining
from brokerd.server.members.kept_aside import KeptAside
from brokerd.server.members.leadership import Leadership
from brokerd.server.members.member_calls import MemberCalls
from brokerd.server.members.member_cluster import MemberCluster
from brokerd.server.members.refill import Refill
from brokerd.server.members.repair import Repair
from brokerd.server.members.stuck_queues import StuckQueues
from brokerd.server.memory.alarms import AlarmListeners, AlarmMonitor
from brokerd.server.messages.dead_letter_publisher import DeadLetterPublisher
from brokerd.server.messages.dropped import Dropped
from brokerd.server.messages.federation_ports import MemberTopology
from brokerd.server.messages.job_run import Around
from brokerd.server.messages.job_workers import JobWorkers
from brokerd.server.messages.partial_messages import PartialMessages
from brokerd.server.messages.refused_publishes import RefusedPublishes
from brokerd.server.messages.reply_to import Replies
from brokerd.server.messages.routing import MemberRouting
from brokerd.server.messages.tracing import Tracer
from brokerd.server.observe import (
    figures,
    health,
    metrics,
    metrics_detailed,
    telemetry_hooks,
    telemetry_peers,
)
from brokerd.server.observe.telemetry_peers import TelemetryPeers
from brokerd.server.observe.topology_walk import TopologyWalk
from brokerd.server.queues.browsing import QueueBrowser
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.deliveries import DeliveryHub
from brokerd.server.queues.directory import MemberQueues
from brokerd.server.queues.identity import Process
from brokerd.server.queues.in_flight import InFlight
from brokerd.server.queues.leaders import CatalogOptions, QueueLeaders
from brokerd.server.queues.replicas import Listeners, QueueGroups
from brokerd.server.queues.turn import Turn
from brokerd.server.queues.vanished import VanishedQueues
from brokerd.server.queues.walking import Walker
from brokerd.server.runtime import MemberRuntime
from brokerd.storage.wal import WriteAheadLog
from brokerd.telemetry.counters import Counters


@dataclass(slots=True, frozen=True)
class Dependencies:
    """What is there before the member is built."""

    config: BrokerConfig
    profile: Profile
    wal: WriteAheadLog
    host: Host
    groups: GroupClient
    checker: PasswordChecker
    #: Under which secrets go into the log.
    keyring: Keyring
    #: Of host and groups, too.
    rng: random.Random
    #: How other nodes are asked what they know of this one.
    ask: Ask = join_request.ask
    #: Receives why a background task ended, None if it did not fail.
    task_ended: Callable[[BaseException | None], None] = log_failure


@dataclass(slots=True, frozen=True)
class CoreServices:
    """What all rooms stand on."""

    config: BrokerConfig
    profile: Profile
    host: Host
    groups: GroupClient
    checker: PasswordChecker
    rng: random.Random
    lifecycle: Lifecycle
    tasks: Tasks
    process: Process
    catalog: MemberCatalog
    queues: MemberQueues
    queue_client: QueueClient
    counters: Counters
    refused: RefusedPublishes
    variables: Variables
    audit: AuditLog


@dataclass(slots=True, frozen=True)
class Access:
    """Who may come in, who is connected, who is blocked."""

    connections: Connections[ClientConnection]
    shared_counts: SharedCounts
    alarms: ClusterAlarms
    logins: LoginRecords
    revocation: Revocation
    authenticator: Authenticator
    admission: Admission
    callers: Callers
    wheel: DeadlineWheel
    partial_messages: PartialMessages
    #: Of the listeners for clients; each component that listens with TLS adds its own.
    certificate_files: list[CertificateFiles[ssl.SSLContext]]


@dataclass(slots=True, frozen=True)
class Members:
    """The members of the cluster and of groups."""

    leadership: Leadership
    disk_watch: DiskWatch
    calls: MemberCalls
    cluster: MemberCluster
    membership: GroupMembership
    kept_aside: KeptAside
    stuck: StuckQueues
    homes: HomeMembers
    consumed: ConsumedQueues
    refill: Refill
    repair: Repair
    catalog_members: CatalogMembers
    joining: Joining


@dataclass(slots=True, frozen=True)
class Messages:
    """Between front doors and queues."""

    routing: MemberRouting
    deliveries: DeliveryHub
    replies: Replies
    tracer: Tracer
    objects: MemberObjects
    dead_letter_publisher: DeadLetterPublisher
    job_workers: JobWorkers
    leaders: QueueLeaders


@dataclass(slots=True, frozen=True)
class Fronts:
    """What outsiders connect to."""

    endpoints: Endpoints
    monitor: AlarmMonitor
    telemetry: telemetry_hooks.Telemetry
    grpc: GrpcServer
    http: HttpServer
    management: HttpServer
    #: Samples for the management API.
    rates: Rates


@dataclass(slots=True, frozen=True)
class Member:
    """One member, built, but for its fronts."""

    base: CoreServices
    access: Access
    messages: Messages
    members: Members
    queue_groups: QueueGroups
    catalog_events: CatalogEvents
    #: For the host.
    events: MemberEvents


def build(given: Dependencies) -> Member:
    """Build a member; ConfigError if what is configured makes no sense."""
    base = _base(given)
    access = _access(base)
    messages, members = _rooms(base, access, given.ask)
    queue_groups = _queue_groups(base, messages, members)
    catalog_events = _catalog_events(base, access, messages, members, queue_groups)
    events = MemberEvents(_event_listeners(base, access, messages, members, catalog_events))
    return Member(base, access, messages, members, queue_groups, catalog_events, events)


def _base(given: Dependencies) -> CoreServices:
    config, host, groups = given.config, given.host, given.groups
    tasks = Tasks(given.task_ended)
    refused = RefusedPublishes(groups.refusal)
    limits = config.limits
    turn = Turn(
        groups,
        config.node_name,
        host.incarnation,
        host.before_flush,
        # The simulator's is not the machine's.
        clock=asyncio.get_running_loop().time,
        refused=refused.count,
        in_flight=InFlight(limits.queue_unconfirmed_bytes),
    )
    process = Process(config.node_name, host.incarnation)
    this = (given.profile, process, host, groups, limits)
    catalog = MemberCatalog(*this, given.keyring, tasks.spawn)
    queues = MemberQueues(host, groups, given.wal)
    return CoreServices(
        config=config,
        profile=given.profile,
        host=host,
        groups=groups,
        checker=given.checker,
        rng=given.rng,
        lifecycle=Lifecycle(),
        tasks=tasks,
        process=process,
        catalog=catalog,
        queues=queues,
        queue_client=QueueClient(turn, limits.operation_timeout_ms / 1000, queues.queue_of),
        counters=Counters(process.clock_ms, lambda: time.monotonic_ns() // 1000),
        refused=refused,
        variables=Variables(config),
        audit=AuditLog(config.audit, config.data_dir, process.clock_ms),
    )


def _access(base: CoreServices) -> Access:
    view, limits, node = base.catalog.view, base.config.limits, base.process.node
    connections: Connections[ClientConnection] = Connections(limits)
    shared_counts = SharedCounts(node, view, connections.counts, base.host)
    logins = LoginRecords()
    authenticator = Authenticator(
        view=view,
        checker=base.checker,
        records=logins,
        variables=base.variables,
        settings=base.config.auth,
        spawn=base.tasks.spawn,
        write_later=base.catalog.write_later,
        tokens=tokens.of_config(
            base.config.oauth2, base.config.kubernetes, view, lambda: int(time.time() * 1000)
        ),
    )
    return Access(
        connections=connections,
        shared_counts=shared_counts,
        alarms=ClusterAlarms(connections.all, connections.blocked.episode_over),
        logins=logins,
        revocation=Revocation(connections.guests),
        authenticator=authenticator,
        admission=Admission(node, view, limits, connections, shared_counts),
        callers=Callers(authenticator, view),
        wheel=DeadlineWheel(),
        partial_messages=PartialMessages(),
        certificate_files=[],
    )


def _nudge(catalog: MemberCatalog, client: QueueClient) -> Callable[[int], None]:
    return lambda uid: catalog.nudge() if uid == CATALOG_GROUP else client.nudge(uid)


def _rooms(base: CoreServices, access: Access, ask: Ask) -> tuple[Messages, Members]:
    config, host, groups, queues = base.config, base.host, base.groups, base.queues
    catalog, view, process, spawn = base.catalog, base.catalog.view, base.process, base.tasks.spawn
    dropped = Dropped(queues.ends.dropped)
    routing = MemberRouting(
        view, base.profile, base.counters, dropped, lambda uid: host.leader_of(uid) == host.node
    )
    consumed = ConsumedQueues(host, queues.queue_of, view.down_homes.absent)
    client = base.queue_client
    deliveries = DeliveryHub(client.resume, consumed.changed)
    tracer = Tracer(view, routing.router, process.node, client)
    objects = MemberObjects(
        node=process.node,
        config=config,
        random=base.rng,
        host=host,
        catalog=catalog,
        queues=client,
        checker=base.checker,
        tracer=tracer,
        audit_log=base.audit,
    )
    calls = MemberCalls(host, spawn)
    cluster = MemberCluster(host, calls, catalog, queues)
    membership = GroupMembership(cluster, spawn, base.lifecycle.stopping.is_set)
    dead_letter_publisher = DeadLetterPublisher(
        queues, client, routing, process, spawn, lambda: "disk" in access.alarms.all.on()
    )
    around = Around(
        node=process.node,
        queues=queues,
        client=client,
        routing=routing,
        view=view,
        audit=base.audit,
        alarm=access.alarms.reason,
        clock_ms=process.clock_ms,
        outcomes=job_targets.TargetQuestions(cluster),
    )
    job_targets.serve(calls, queues, host.folded.__contains__)
    job_workers = JobWorkers(around, process, spawn)
    options = CatalogOptions(view, base.profile, config.queues, routing.warn)
    leaders = QueueLeaders(
        identity=process,
        queues=queues,
        replicas=host,
        deliveries=deliveries,
        dead_letters=dead_letter_publisher,
        jobs=job_workers,
        options=options,
        wake_members=membership.wake,
        write_later=catalog.write_later,
        led=queues.led,
    )
    quorum_calls.serve(calls, host, leaders.led, membership.stuck)
    replies = Replies(process, host, view)
    messages = Messages(
        routing=routing,
        deliveries=deliveries,
        replies=replies,
        tracer=tracer,
        objects=objects,
        dead_letter_publisher=dead_letter_publisher,
        job_workers=job_workers,
        leaders=leaders,
    )
    leadership = Leadership(host, base.lifecycle.has_failed)
    this = kept_catalog.Member(base.profile, objects, queues, base.lifecycle.failed)
    refill = Refill(config.data_dir, host, host.refilling, _nudge(catalog, client), spawn)

    def homes_changed() -> None:
        catalog.routes_changed()
        # At-least-once dead letters that were refused, or had no route, may go now.
        dead_letter_publisher.topology_changed()

    members = Members(
        leadership=leadership,
        disk_watch=DiskWatch(config.storage, host, leadership, view),
        calls=calls,
        cluster=cluster,
        membership=membership,
        kept_aside=KeptAside(this, host, groups, calls, spawn),
        stuck=StuckQueues(cluster, deliveries, groups),
        homes=HomeMembers(
            config=config.queues,
            silence=host,
            catalog=catalog,
            queues=queues.records,
            consumers=deliveries,
            commands=groups,
            consumed=consumed,
            rerouted=homes_changed,
        ),
        consumed=consumed,
        refill=refill,
        repair=Repair(cluster, host, host.refilling, refill.nudge, spawn),
        catalog_members=CatalogMembers(catalog, host, leadership.hand_over),
        joining=Joining(
            config=config,
            host=host,
            groups=groups,
            catalog=catalog,
            refill=refill,
            lifecycle=base.lifecycle,
            spawn=spawn,
            ask=ask,
        ),
    )
    return messages, members


def _queue_groups(base: CoreServices, messages: Messages, members: Members) -> QueueGroups:
    leaders, letters, hub = messages.leaders, messages.dead_letter_publisher, messages.deliveries
    workers = messages.job_workers
    queues, view = base.queues, base.catalog.view
    vanished = VanishedQueues(queues, base.host, messages.routing.dropped)
    base.catalog.restoring_listeners.append(lambda: vanished.remember(view.queues()))
    listeners = Listeners(
        opened=members.refill.opened,
        leaving=(leaders.replica_closed, letters.stop, workers.stop),
        left=(hub.leader_changed,),
        vanishing=vanished.vanishing,
        ending=(
            base.queues.ends.ending,
            leaders.forget,
            members.stuck.forget,
            letters.stop,
            workers.stop,
            members.consumed.forget,
        ),
        ended=(hub.group_gone,),
        changed=leaders.update_options,
        logs_known=vanished.loaded,
        loaded=letters.topology_changed,
    )
    return QueueGroups(base.host, base.groups, view, queues.records, queues.led, listeners)


def _catalog_events(
    base: CoreServices,
    access: Access,
    messages: Messages,
    members: Members,
    queue_groups: QueueGroups,
) -> CatalogEvents:
    leaders, joining = messages.leaders, members.joining
    followers = (joining.dial_members, members.catalog_members.wake)
    listeners = CatalogListeners(
        queue=queue_groups.topology_changed,
        policies=leaders.update_vhost,
        members=followers,
        vhost_deleted=access.connections.vhost_deleted,
        each=(
            members.homes.queue_changed,
            members.membership.topology_changed,
            base.checker.topology_changed,
            access.connections.topology_changed,
            access.revocation.topology_changed,
            access.shared_counts.topology_changed,
            messages.tracer.topology_changed,
        ),
        applied=(messages.dead_letter_publisher.topology_changed, base.catalog.writer.applied),
        # A group may be led here before the catalog is read.
        loaded=(
            queue_groups.load,
            members.homes.load,
            messages.tracer.load,
            members.membership.wake_all,
            *followers,
        ),
        restored=(functools.partial(leaders.update_vhost, None), access.revocation.all_changed),
    )
    return CatalogEvents(base.catalog, listeners)


def _event_listeners(
    base: CoreServices,
    access: Access,
    messages: Messages,
    members: Members,
    catalog_events: CatalogEvents,
) -> EventListeners:
    def heard_again(_node: NodeId, up: bool) -> None:
        if up:
            members.membership.wake_all()

    return EventListeners(
        leaders=messages.leaders,
        stuck=members.stuck,
        alarms=access.alarms,
        catalog=catalog_events.realise,
        node_changed=(
            heard_again,
            members.homes.node_changed,
            members.consumed.node_changed,
            access.shared_counts.node_changed,
        ),
        figures=access.connections.member_figures,
        complete=base.queues.complete_reply,
        failed=base.lifecycle.failed,
        received=_received(base, access, messages, members),
    )


def _received(
    base: CoreServices, access: Access, messages: Messages, members: Members
) -> dict[int, Receive]:
    writer, leaders, replies = base.catalog.writer, messages.leaders, messages.replies
    calls, counts, kinds = members.calls, access.shared_counts, DeliveryKind
    hub, decode_cancelled = messages.deliveries, delivery_codec.decode_cancelled
    decode_sync = delivery_codec.decode_sync

    def sync(sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
        base.tasks.spawn(writer.sync(sender, *decode_sync(payload)))

    return {
        kinds.MESSAGES: lambda _, uid, term, data: leaders.received(uid, term, data),
        kinds.SYNC: sync,
        kinds.SYNCED: lambda sender, _, __, data: writer.synced(sender, decode_sync(data)[0]),
        kinds.CANCELLED: lambda _, __, ___, data: hub.cancelled(*decode_cancelled(data)),
        kinds.REPLY: lambda sender, _, __, data: replies.received(sender, data),
        kinds.REPLY_TAKEN: lambda _, __, ___, data: replies.answered(data),
        kinds.COUNTS: lambda sender, _, __, data: counts.received(sender, data),
        kinds.CONSUMED: lambda sender, _, __, data: members.consumed.received(sender, data),
        kinds.CALL: lambda sender, _, __, data: calls.received(sender, kinds.CALL, data),
        kinds.ANSWER: lambda sender, _, __, data: calls.received(sender, kinds.ANSWER, data),
    }


# ---- what outsiders connect to ------------------------------------------------------------------


def build_fronts(member: Member) -> Fronts:
    """Build what outsiders connect to."""
    base, access, messages, members = member.base, member.access, member.messages, member.members
    config, process, view = base.config, base.process, base.catalog.view
    listeners = AlarmListeners(
        base.queues.caches,
        (access.partial_messages, base.queue_client.in_flight),
        base.counters,
        base.host.own,
        access.alarms.set,
        members.disk_watch,
    )
    queues = base.queues
    holders = memory_breakdown.Holders(
        queues=queues,
        has_replica=base.host.has_group,
        is_folded=base.host.folded.__contains__,
        moved=base.host.watch(folds=True),
        connections=access.connections.all,
        consumers=messages.deliveries,
        catalog=view,
        log_cache=queues.caches.size_bytes,
    )
    monitor = AlarmMonitor(process.node, config, base.profile, view, listeners, holders)
    endpoints = _endpoints(base, access, messages)
    federation_calls.serve(members.calls, endpoints.link_rows, endpoints.restart_link)
    alarms = access.alarms.all
    runtime = MemberRuntime(base.lifecycle, alarms, monitor, endpoints, members.leadership)
    counted = (base.counters, base.queues, base.host, access.connections, runtime)
    peers = TelemetryPeers(
        telemetry_peers.Members(process.node, view.members, base.host.alive, members.calls),
        config.port("grpc"),
        is_enabled=config.telemetry.enabled,
    )
    rows = telemetry_hooks.Sources(*counted, TopologyWalk(view, base.host), peers)
    telemetry = telemetry_hooks.Telemetry(config, process, access.callers, rows)
    looks = _looks(base, access, messages, members)
    admin = _admin_services(base, access, messages, members, runtime, looks)
    client_calls.serve(members.calls, admin)
    dead_letter_rows.serve(members.calls, admin)
    servicers = Servicers(
        AdminService(admin),
        _message_service(base, access, messages, runtime),
        telemetry.service,
        HealthService(base.lifecycle.health),
    )
    grpc = GrpcServer(config.limits, access.callers, servicers, access.certificate_files)
    http = _http(member, runtime)
    services = _management_services(member, admin, endpoints)
    api = _management(services)
    return Fronts(endpoints, monitor, telemetry, grpc, http, api, services.rates)


def _http(member: Member, runtime: MemberRuntime) -> HttpServer:
    """Health and metrics."""
    base, access, messages, members = member.base, member.access, member.messages, member.members
    config, health_state = base.config, base.lifecycle.health
    sources = figures.Sources(
        node=base.process.node,
        profile=base.profile,
        cluster_name=config.cluster.name,
        view=base.catalog.view,
        host=base.host,
        commit_times=base.groups.commit_times,
        queues=base.queues,
        queue_groups=member.queue_groups,
        routing=messages.routing,
        refused=base.refused,
        deliveries=messages.deliveries,
        connections=access.connections,
        certificate_files=access.certificate_files,
        logins=access.logins,
        checker=base.checker,
        audit=base.audit,
        refill=members.refill,
        kept_aside=members.kept_aside,
        runtime=runtime,
        late_reason=messages.dead_letter_publisher.late_reason,
    )
    pages = health.Pages(
        functools.partial(metrics.render, sources),
        functools.partial(metrics_detailed.render, sources),
    )
    return HttpServer(health.make_app(health_state, pages, config.data_dir / "results"))


def _endpoints(base: CoreServices, access: Access, messages: Messages) -> Endpoints:
    services = ConnectionServices(
        channels=ChannelServices(
            config=base.config,
            profile=base.profile,
            identity=base.process,
            catalog=base.catalog,
            objects=messages.objects,
            queues=base.queues,
            queue_client=base.queue_client,
            messages=messages.routing,
            deliveries=messages.deliveries,
            replies=messages.replies,
            tracer=messages.tracer,
            counters=base.counters,
            now_ms=access.wheel.now_ms,
        ),
        connections=access.connections,
        authenticator=access.authenticator,
        admission=access.admission,
        wheel=access.wheel,
        partial_messages=access.partial_messages,
        clock_ms=base.process.clock_ms,
        blocking_reason=access.alarms.reason,
        call_after_flush=base.host.call_after_flush,
    )
    listener = AmqpListener(services, base.variables, base.tasks.spawn, access.certificate_files)
    topology = MemberTopology(
        configured_name=base.config.cluster.name,
        catalog=base.catalog,
        members=base.host,
        sender=base.process,
        client=base.queue_client,
        routing=messages.routing,
        queues=base.queues,
        alarm=access.alarms.reason,
        connect_here=listener.connect_here,
    )
    return Endpoints(
        base.config,
        base.lifecycle.health,
        listener,
        functools.partial(Supervisor, topology),
        access.connections,
        base.catalog,
    )


def _message_service(
    base: CoreServices, access: Access, messages: Messages, runtime: MemberRuntime
) -> MessageService:
    services = StreamServices(
        limits=base.config.limits,
        identity=base.process,
        topology=base.catalog,
        objects=messages.objects,
        queues=base.queues,
        queue_client=base.queue_client,
        messages=messages.routing,
        deliveries=messages.deliveries,
        replies=messages.replies,
        blocked=access.connections.blocked,
        clock_ms=base.process.clock_ms,
        blocking_reason=access.alarms.reason,
    )
    return MessageService(
        services,
        access.callers,
        access.admission,
        access.connections,
        has_started=lambda: runtime.has_started,
    )


def _management(services: ManagementServices) -> HttpServer:
    management_table.register(services)
    limits = management.listener_limits(services.config.limits)
    return HttpServer(management.make_app(services, management_table.TABLE), limits)


def _management_services(
    member: Member, admin: AdminServices, endpoints: Endpoints
) -> ManagementServices:
    base, access, messages, members = member.base, member.access, member.messages, member.members
    totals = MemberTotals(access.connections, member.queue_groups, base.counters.totals)
    return ManagementServices(
        config=base.config,
        profile=base.profile,
        identity=base.process,
        catalog=base.catalog,
        objects=messages.objects,
        authenticator=access.authenticator,
        admission=access.admission,
        listed=admin,
        members=members.cluster,
        calls=members.calls,
        figures=Figures(base.process.node, base.host.alive, members.calls),
        totals=totals,
        rates=member_figures.make_rates(admin, totals),
        resting=RowCache(base.host.watch()),
        routing=messages.routing,
        connect_here=endpoints.connect_here,
        browses=admin.browses,
        triages=admin.triages,
        jobs=admin.jobs,
        blocking_reason=access.alarms.reason,
    )


@dataclass(slots=True)
class Looks:
    """Looks at the messages of queues, and what is done with them."""

    browses: Browses
    triages: Triages
    jobs: QueueJobs


def _looks(base: CoreServices, access: Access, messages: Messages, members: Members) -> Looks:
    walker = Walker(base.queues, base.process.clock_ms, lambda: base.host.runs_total)
    compiled = browse_filters.compiler(base.process.clock_ms)
    browse_calls.serve(members.calls, base.host, QueueBrowser(walker), compiled)
    pages = triage_pages.TriagePages(
        walker, triage_pages.Catalog(messages.routing, base.catalog.view), compiled
    )
    triage_pages.serve(members.calls, base.host, pages)
    target_rooms.serve(members.calls, base.process.node, base.queues)
    sources = look_guard.Sources(
        view=base.catalog.view,
        admission=access.admission,
        members=members.cluster,
        signer=base.catalog.keyring,
        audit=base.audit,
        refusal=base.groups.refusal,
        check_filter=compiled,
    )
    guard = look_guard.LookGuard(sources)
    return Looks(Browses(guard), Triages(guard), _jobs(base, messages, members))


def _jobs(base: CoreServices, messages: Messages, members: Members) -> QueueJobs:
    folded = base.host.folded.__contains__
    jobs.serve(members.calls, base.queues, messages.job_workers, folded)
    return jobs.Jobs(
        jobs.Sources(
            view=base.catalog.view,
            client=base.queue_client,
            members=members.cluster,
            audit=base.audit,
            clock_ms=base.process.clock_ms,
            outcomes=job_targets.TargetQuestions(members.cluster),
        )
    )


def _admin_services(
    base: CoreServices,
    access: Access,
    messages: Messages,
    members: Members,
    runtime: MemberRuntime,
    looks: Looks,
) -> AdminServices:
    return AdminServices(
        callers=access.callers,
        authenticator=access.authenticator,
        node=base.process.node,
        incarnation=base.process.incarnation,
        profile=base.profile,
        catalog=base.catalog,
        objects=messages.objects,
        groups=base.host,
        queues=base.queues,
        members=members.cluster,
        catalog_members=members.catalog_members,
        clients=access.connections,
        deliveries=messages.deliveries,
        variables=base.variables,
        runtime=runtime,
        browses=looks.browses,
        triages=looks.triages,
        jobs=looks.jobs,
        late_reason=messages.dead_letter_publisher.late_reason,
    )
