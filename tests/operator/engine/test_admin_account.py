"""The operator's own account: a real member with TLS, an engine, and a Secret that changes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from brokerd_operator import conditions
from brokerd_operator.broker.client import AdminClient, ClientCertificate, Target
from brokerd_operator.broker.errors import BrokerDenied, BrokerUnreachable
from brokerd_operator.engine import admin_account
from brokerd_operator.engine.engine import Engine, EngineSettings
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.ports import ClusterReport
from brokerd_operator.engine.running import run_engine
from brokerd_operator.engine.session import State
from brokerd_operator.local.directory import Directory
from brokerd_operator.reconcile.actions import Delete, Upsert
from brokerd_operator.sources import certificates
from brokerd_operator.specs.model import ClusterAddress, DesiredObject, Identity, Reference

from tests.integration.members import Member, cluster
from tests.operator.fake_broker import PASSWORD, USER, FakeBroker
from tests.operator.resources import resource

pytestmark = pytest.mark.timeout(300)

#: Two busy cores and a full test run beside it.
DEADLINE_S = 60.0
KEY = Key("BrokerCluster", "default", "prod")
ADMIN = Identity("user", "", "admin")


@dataclass
class Rig:
    """A member, how it is reached, and what the Secret says; the driver of an engine."""

    member: Member
    ca: bytes
    ca_key: bytes
    user: str = "admin"
    password: str = "first"
    #: Whether the operator shows its certificate.
    has_certificate: bool = True
    told: list[str] = field(default_factory=list)
    engine: Engine | None = None
    store: Directory | None = None

    # ---- what a ClusterDriver does --------------------------------------------------------------

    async def reconcile(self, body: Any, meta: Any, spec: Any) -> ClusterReport:
        return ClusterReport("Available", "1 of 1 members are ready")

    async def teardown(self, body: Any, meta: Any) -> bool:
        return True

    async def target(self, reference: Reference) -> Target | None:
        return self.dialled(self.password, certificate=self.certificate())

    async def address(self, reference: Reference) -> ClusterAddress | None:
        return ClusterAddress(("localhost:1",), self.user, self.password)

    # ---- what tests do --------------------------------------------------------------------------

    def certificate(self) -> ClientCertificate | None:
        return shown(self.ca, self.ca_key) if self.has_certificate else None

    def dialled(self, password: str, **more: Any) -> Target:
        return Target((f"localhost:{self.member.grpc_port}",), self.user, password, self.ca, **more)

    async def can_log_in(self, password: str) -> bool:
        try:
            async with calling(self.dialled(password)) as client:
                await client.info()
        except BrokerDenied:
            return False
        return True

    async def as_operator(self, *actions: Any) -> None:
        target = self.dialled("", certificate=shown(self.ca, self.ca_key))
        async with calling(target) as client:
            results = await client.apply(actions)
        assert all(result.is_done for result in results), results

    async def put_user(self, password: str, tags: tuple[str, ...] = ("administrator",)) -> None:
        spec = {"tags": list(tags), "limits": {}, "password": password}
        await self.as_operator(Upsert(DesiredObject("user", "", "admin", spec), None))

    def look(self) -> None:
        """As an annotation or a change of the Secret does."""
        assert self.engine is not None
        self.engine.queue.add(KEY)

    def condition(self, type_: str, kind: str = "BrokerCluster", name: str = "prod") -> str:
        assert self.store is not None
        found = conditions.find(self.store.get(Key(kind, "default", name)) or {}, type_)
        return "" if found is None else f"{found.status} {found.reason}"

    async def until(self, what: str, check: Callable[[], Any]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = check()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
                await asyncio.sleep(0.02)
        raise AssertionError(what)


class Noting(Directory):
    """Notes the reasons of Events of normal transitions that are not Ready's."""

    def __init__(self, data_dir: Path, told: list[str]) -> None:
        super().__init__(data_dir, lambda line: None)
        self._told = told

    async def emit(self, body: Any, type_: str, reason: str, message: str) -> None:
        if reason.startswith("Credentials"):
            self._told.append(reason)


@contextlib.asynccontextmanager
async def calling(target: Target) -> AsyncIterator[AdminClient]:
    client = AdminClient(target)
    try:
        yield client
    finally:
        await client.close()


@dataclass
class Asked:
    """A session as `waiting` looks at it."""

    state: State
    is_denied: bool = False
    problem: str = ""


def shown(ca: bytes, ca_key: bytes) -> ClientCertificate:
    made = certificates.make_operator_certificate(ca, ca_key)
    return ClientCertificate(made.certificate, made.key)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("admin")
    ca, ca_key = certificates.make_ca("default/prod CA")
    serving = certificates.make_certificate(ca, ca_key, ("localhost", "prod-0"))
    for name, data in (("crt", serving.certificate), ("key", serving.key), ("ca", ca)):
        (folder / name).write_bytes(data)
    env = {
        "BROKERD_TLS_CERT_FILE": str(folder / "crt"),
        "BROKERD_TLS_KEY_FILE": str(folder / "key"),
        "BROKERD_AUTH_OPERATOR_CA_FILE": str(folder / "ca"),
        "BROKERD_AUTH_CREATE_GUEST": "false",
        "BROKERD_AUTH_ADMIN_USER": "admin",
        "BROKERD_AUTH_ADMIN_PASSWORD": "first",
        "BROKERD_AUTH_SCRYPT_LOG2_N": "10",
    }
    with cluster(folder, 1, **env) as [member]:
        yield Rig(member, ca, ca_key)


@pytest_asyncio.fixture
async def rig(served: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """A new operator in front of the member, which every test finds with the password `first`."""
    served.user, served.password = "admin", "first"
    served.has_certificate, served.told = True, []
    await served.put_user("first")
    store = served.store = Noting(tmp_path, served.told)
    engine = served.engine = Engine(store, served, EngineSettings(sweep_delay_s=0.1))
    store.attach(engine.put, engine.remove, lambda namespace, name: None)
    task = asyncio.create_task(run_engine(engine))
    yield served
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def start(rig: Rig, **spec: Any) -> None:
    assert rig.store is not None
    problem = rig.store.apply(resource("BrokerCluster", "prod", **spec))
    assert not problem, problem


def is_synced(rig: Rig) -> Callable[[], bool]:
    return lambda: (
        rig.condition("CredentialsSynced") == "True Synced"
        and rig.condition("Ready") == "True Available"
    )


async def test_secret_that_was_made_anew_is_taken_and_the_old_password_goes_on_for_a_while(
    rig: Rig,
) -> None:
    rig.password = "second"
    start(rig)
    await rig.until("synced", is_synced(rig))
    assert await rig.can_log_in("second")
    assert await rig.can_log_in("first")
    await rig.until("told", lambda: rig.told == ["CredentialsSet"])


async def test_without_an_overlap_the_old_password_ends_at_once(rig: Rig) -> None:
    rig.password = "second"
    start(rig, admin={"passwordOverlap": "0s"})
    await rig.until("synced", is_synced(rig))
    assert await rig.can_log_in("second")
    assert not await rig.can_log_in("first")


async def test_overlap_ends_by_itself(rig: Rig) -> None:
    rig.password = "second"
    start(rig, admin={"passwordOverlap": "2s"})
    await rig.until("synced", is_synced(rig))

    async def is_over() -> bool:
        return not await rig.can_log_in("first")

    await rig.until("the first password is wrong", is_over)
    assert await rig.can_log_in("second")


async def test_going_back_to_the_password_before_is_a_change_too(rig: Rig) -> None:
    """It is still taken, so nothing but the stored hash says that it would end."""
    start(rig)
    await rig.until("synced", is_synced(rig))
    for password in ("second", "first"):
        rig.password = password
        rig.look()
        await rig.until(password, functools.partial(is_current, rig, password))
    assert await rig.can_log_in("first")


async def is_current(rig: Rig, password: str) -> bool:
    """Whether the broker would change nothing if this password were set."""
    spec = {"tags": ["administrator"], "limits": {}, "password": password}
    target = rig.dialled("", certificate=shown(rig.ca, rig.ca_key))
    async with calling(target) as client:
        item = Upsert(DesiredObject("user", "", "admin", spec), None)
        (result,) = await client.apply([item], dry_run=True)
    return result.code == "UNCHANGED"


async def test_password_that_somebody_changed_in_the_broker_is_put_back_at_once(rig: Rig) -> None:
    start(rig)
    await rig.until("synced", is_synced(rig))
    await rig.put_user("stranger's", tags=())
    await rig.until("put back", lambda: rig.can_log_in("first"))
    assert not await rig.can_log_in("stranger's")


async def test_account_that_somebody_deleted_is_made_again(rig: Rig) -> None:
    start(rig)
    await rig.until("synced", is_synced(rig))
    await rig.as_operator(Delete(ADMIN))
    await rig.until("made again", lambda: rig.can_log_in("first"))
    async with calling(rig.dialled("first")) as client:
        items, _ = await client.list_topology()
    rights = [item.spec for item in items if item.kind == "permission" and item.name == "admin"]
    assert rights == [{"configure": ".*", "write": ".*", "read": ".*"}]


async def test_rotation_by_password_alone_is_no_news_of_the_broker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a release before: the session's own login ends with the old password."""
    rig.has_certificate = False
    start(rig, admin={"passwordOverlap": "0s"})
    await rig.until("synced", is_synced(rig))
    assert rig.engine is not None
    [session] = rig.engine.sessions()
    told: list[str] = []
    monkeypatch.setattr(rig.engine, "broker_down", lambda session: told.append(session.problem))
    rig.password = "second"
    rig.look()

    def is_renewed() -> bool:
        target = None if session.client is None else session.client.target
        return target is not None and target.password == "second" and session.state is State.UP

    await rig.until("the session logs in anew", is_renewed)
    assert await rig.can_log_in("second")
    assert told == []


@pytest.mark.parametrize("has_certificate", [True, False])
async def test_secret_that_names_another_user_makes_that_one_the_reserved_account(
    rig: Rig, has_certificate: bool
) -> None:
    rig.has_certificate = has_certificate
    start(rig, admin={"passwordOverlap": "0s"})
    await rig.until("synced", is_synced(rig))
    assert rig.engine is not None
    [session] = rig.engine.sessions()
    seen = [rig.condition("Ready")]
    rig.user, rig.password = "boss", "boss's"
    rig.look()

    def is_renewed() -> bool:
        seen.append(rig.condition("Ready"))
        return session.account == "boss" and session.state is State.UP

    await rig.until("the session logs in as the other one", is_renewed)
    assert await rig.can_log_in("boss's")
    assert set(seen) == {"True Available"}, "nothing is said to be down"


async def test_neither_certificate_nor_password_is_said_and_the_right_password_helps(
    rig: Rig,
) -> None:
    rig.has_certificate, rig.password = False, "wrong"
    start(rig)
    await rig.until("waits", lambda: rig.condition("Ready") == "False WaitingForLogin")
    assert rig.condition("CredentialsSynced") == "False WaitingForLogin"
    assert rig.store is not None
    ready = conditions.find(rig.store.get(KEY) or {}, "Ready")
    assert ready is not None
    assert "Secret prod-admin" in ready.message
    # An operator that starts anew has nothing else to say before it has asked.
    for state, said in ((State.CONNECTING, ready.reason), (State.UP, None)):
        found = admin_account.waiting(Asked(state), "prod-admin", ready)
        assert (found and found[0]) == said
    assert admin_account.waiting(Asked(State.CONNECTING), "prod-admin", None) is None
    rig.password = "first"
    await rig.until("synced", is_synced(rig))


async def test_secret_without_a_password_is_said_while_the_operator_goes_on(rig: Rig) -> None:
    rig.password = ""
    start(rig)
    await rig.until("said", lambda: rig.condition("CredentialsSynced") == "False NotSynced")
    await rig.until("ready", lambda: rig.condition("Ready") == "True Available")
    assert await rig.can_log_in("first")


# ---- the client: which login a member takes -----------------------------------------------------


async def test_password_helps_where_the_certificate_is_of_a_lost_authority(rig: Rig) -> None:
    """The CA Secret was lost and made anew: members trust the one before."""
    other = shown(*certificates.make_ca("default/prod CA"))
    async with calling(rig.dialled("first", certificate=other)) as client:
        await client.info()
        assert not client.is_certificate_taken
        items, revision = await client.list_topology()
        assert ADMIN in [item.identity for item in items]
        changes = client.watch(revision - 1)
        assert await anext(changes)
        await changes.aclose()  # type: ignore[attr-defined]
    with pytest.raises(BrokerDenied):
        async with calling(rig.dialled("wrong", certificate=other)) as client:
            await client.info()


async def test_certificate_comes_first_and_a_wrong_password_is_not_even_tried(rig: Rig) -> None:
    before = rig.member.log().count("refused login")
    target = rig.dialled("wrong", certificate=shown(rig.ca, rig.ca_key))
    async with calling(target) as client:
        await client.info()
        assert client.is_certificate_taken
        assert await client.rows_of_all("members")
        assert await client.reasons_against_stopping("n0") == []
    assert rig.member.log().count("refused login") == before


async def test_members_own_certificate_gets_nobody_in(rig: Rig) -> None:
    made = certificates.make_certificate(rig.ca, rig.ca_key, ("prod-0",))
    target = rig.dialled("wrong", certificate=ClientCertificate(made.certificate, made.key))
    with pytest.raises(BrokerDenied):
        async with calling(target) as client:
            await client.info()


async def test_member_that_is_away_is_no_refusal(rig: Rig) -> None:
    target = Target(("localhost:1",), "admin", "x", rig.ca, certificate=shown(rig.ca, rig.ca_key))
    with pytest.raises(BrokerUnreachable):
        async with calling(target) as client:
            await client.info()


class Newer(FakeBroker):
    """Takes the certificate, which is nothing to be seen in a call, and no password."""

    async def _check(self, context: Any) -> None:
        if self.is_down and "authorization" not in dict(context.invocation_metadata()):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no majority")
        if "authorization" in dict(context.invocation_metadata()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "login refused")


async def test_members_of_two_releases_are_asked_each_by_what_it_takes() -> None:
    """In the middle of an upgrade."""
    older, newer = FakeBroker(), Newer()
    certificate = shown(*certificates.make_ca("default/prod CA"))
    await older.start()
    await newer.start()
    try:
        both = (older.address, newer.address)
        for addresses, password, taken in (
            ((older.address,), PASSWORD, False),
            ((newer.address,), "wrong", True),
            (both, PASSWORD, False),
            # The first member refuses both ways: the second is asked.
            (both, "wrong", True),
        ):
            target = Target(addresses, USER, password, certificate=certificate)
            async with calling(target) as client:
                assert (await client.info()).cluster_name == "fake"
                assert client.is_certificate_taken is taken
        target = Target((older.address,), USER, "wrong", certificate=certificate)
        with pytest.raises(BrokerDenied):
            async with calling(target) as client:
                await client.info()
        # A member without a majority says so, and is not asked whether the password is right.
        newer.is_down = True
        target = Target((newer.address,), USER, "wrong", certificate=certificate)
        with pytest.raises(BrokerUnreachable):
            async with calling(target) as client:
                await client.info()
    finally:
        await older.stop()
        await newer.stop()
