"""The operator's certificate on the gRPC port, over real TLS: who gets in by it (ADR 21)."""

from __future__ import annotations

import base64
import contextlib
import datetime
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from brokerd_operator.manifests.secrets import Certificate
from brokerd_operator.sources import certificates

from brokerd.config import BrokerConfig
from brokerd.core.catalog.catalog_commands import put
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from brokerd.server.access import login_records, operator_login
from brokerd.server.access.login_records import LoginRecords
from brokerd.server.access.tls_listener import ListenError
from brokerd.server.grpc import rpc_auth
from brokerd.server.grpc.grpc_server import GrpcServer
from tests.ports import free_ports
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.access.fakes import Trusting, authenticator
from tests.unit.server.fakes import Nobody
from tests.unit.server.grpc.fakes import servicers

pytestmark = pytest.mark.timeout(120)
WAIT_S = 30.0
HOUR = datetime.timedelta(hours=1)
MEMBER_NAMES = ("shop-0", "shop-0.shop-nodes.team.svc")


@dataclass
class Authority:
    """A cluster's own."""

    ca: bytes
    key: bytes

    @classmethod
    def new(cls) -> Authority:
        return cls(*certificates.make_ca("team/shop CA"))

    def member(self) -> Certificate:
        return certificates.make_certificate(self.ca, self.key, ("localhost", *MEMBER_NAMES))

    def operator(self, life: datetime.timedelta = HOUR, now_s: float | None = None) -> Certificate:
        return certificates.make_operator_certificate(self.ca, self.key, life, now_s)


class Port:
    """The gRPC port of a member; calls to it."""

    def __init__(self, view: Users, logins: LoginRecords, port: int, ca: bytes) -> None:
        self.view = view
        self.logins = logins
        self._address = f"localhost:{port}"
        self._ca = ca

    @contextlib.asynccontextmanager
    async def dialled(self, shown: Certificate | None) -> AsyncIterator[Any]:
        credentials = grpc.ssl_channel_credentials(
            self._ca,
            None if shown is None else shown.key,
            None if shown is None else shown.certificate,
        )
        async with grpc.aio.secure_channel(self._address, credentials) as channel:
            yield admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]

    async def info(self, shown: Certificate | None, password: str = "") -> str:
        """Ask; the caller as the member saw it, or the status code."""
        async with self.dialled(shown) as stub:
            return await ask(stub, password)


async def ask(stub: Any, password: str = "") -> str:
    token = base64.b64encode(f"admin:{password}".encode()).decode()
    metadata = (("authorization", f"Basic {token}"),) if password else ()
    try:
        reply = await stub.GetInfo(admin_pb2.GetInfoRequest(), metadata=metadata, timeout=WAIT_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return str(reply.node)


class InAnHour:
    """The module `time`, when certificates of an hour are over."""

    def time(self) -> float:
        return datetime.datetime.now().timestamp() + 3601


class Users:
    """The users of a catalog, known from when the member has heard of them."""

    def __init__(self, view: CatalogState) -> None:
        self.cluster_id = "c1"
        self.user = view.user


class Answering(admin_pb2_grpc.AdminServicer):
    """Says who calls."""

    def __init__(self, callers: rpc_auth.Callers) -> None:
        self._callers = callers

    async def GetInfo(self, request: Any, context: Any) -> Any:
        caller = await self._callers.authenticate(context, rpc_auth.WRITERS)
        await self._callers.check_tags(context, caller, rpc_auth.WRITERS)
        return admin_pb2.GetInfoResponse(node=caller.user)


@contextlib.asynccontextmanager
async def served(
    directory: Path, authority: Authority, *, with_ca: bool = True
) -> AsyncIterator[Port]:
    (port,) = free_ports(1)
    serving = authority.member()
    for name, data in (("crt", serving.certificate), ("key", serving.key), ("ca", authority.ca)):
        (directory / name).write_bytes(data)
    config = BrokerConfig.model_validate(
        {
            "node": {"bind": "127.0.0.1"},
            "listeners": {"grpc": port},
            "tls": {"cert_file": str(directory / "crt"), "key_file": str(directory / "key")},
            "auth": {"operator_ca_file": str(directory / "ca") if with_ca else ""},
        }
    )

    driver = CatalogDriver()
    driver.do(put("user", "", "admin", {"tags": ["administrator"]}, cause="admin"))
    view = Users(driver.view)
    who = authenticator(view, Trusting("good"))
    callers: Any = rpc_auth.Callers(who, view)  # type: ignore[arg-type]
    server = GrpcServer(config.limits, callers, servicers(Answering(callers)), [])
    await server.start(config)
    try:
        yield Port(view, who.records, port, authority.ca)
    finally:
        await server.stop()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new()


async def test_operators_certificate_is_an_administrator_without_a_user(
    tmp_path: Path, authority: Authority
) -> None:
    async with served(tmp_path, authority) as port:
        assert await port.info(authority.operator()) == operator_login.NAME
        assert port.logins.accepted == {"grpc": 1}


async def test_a_password_is_taken_where_one_is_shown_also_beside_the_certificate(
    tmp_path: Path, authority: Authority
) -> None:
    async with served(tmp_path, authority) as port:
        assert await port.info(None, "good") == "admin"
        assert await port.info(None, "bad") == "UNAUTHENTICATED"
        assert await port.info(None) == "UNAUTHENTICATED"
        assert await port.info(authority.operator(), "good") == "admin"
        assert await port.info(authority.operator(), "bad") == "UNAUTHENTICATED"


async def test_a_members_certificate_of_the_same_authority_is_nobody(
    tmp_path: Path, authority: Authority
) -> None:
    async with served(tmp_path, authority) as port:
        assert await port.info(authority.member()) == "UNAUTHENTICATED"
        assert await port.info(authority.member(), "good") == "admin"


async def test_operator_of_another_cluster_is_refused(tmp_path: Path, authority: Authority) -> None:
    """The authorities have the same name, as those of a cluster made anew do."""
    async with served(tmp_path, authority) as port:
        assert await port.info(Authority.new().operator()) == "UNAVAILABLE"


async def test_expired_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    async with served(tmp_path, authority) as port:
        over = authority.operator(datetime.timedelta(minutes=1), time.time() - 120)
        assert await port.info(over) == "UNAVAILABLE"


async def test_right_ends_with_the_certificate_though_the_connection_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    async with (
        served(tmp_path, authority) as port,
        port.dialled(authority.operator()) as stub,
    ):
        assert await ask(stub) == operator_login.NAME
        monkeypatch.setattr(rpc_auth, "time", InAnHour())
        assert await ask(stub) == "UNAUTHENTICATED"
        assert port.logins.refused == {("grpc", login_records.EXPIRED): 1}


async def test_without_the_setting_the_certificate_means_nothing(
    tmp_path: Path, authority: Authority
) -> None:
    async with served(tmp_path, authority, with_ca=False) as port:
        assert await port.info(authority.operator()) == "UNAUTHENTICATED"
        assert await port.info(Authority.new().operator(), "good") == "admin"


async def test_a_member_that_is_starting_says_so_to_the_operator_too(
    tmp_path: Path, authority: Authority
) -> None:
    async with served(tmp_path, authority) as port:
        port.view.cluster_id = ""
        assert await port.info(authority.operator()) == "UNAVAILABLE"
        port.view.cluster_id = "c1"
        assert await port.info(authority.operator()) == operator_login.NAME


async def test_setting_without_a_usable_authority_stops_the_start(
    tmp_path: Path, authority: Authority
) -> None:
    broken = Authority(b"no certificate", b"")
    broken.member = authority.member  # type: ignore[method-assign]
    with pytest.raises(ListenError, match=r"cannot use auth\.operator_ca_file"):
        async with served(tmp_path, broken):
            pass
    config = BrokerConfig.model_validate({"auth": {"operator_ca_file": "/x"}})
    nobody: Any = Nobody()
    with pytest.raises(ListenError, match=r"needs tls\.cert_file"):
        await GrpcServer(config.limits, nobody, servicers(), []).start(config)


@pytest.mark.parametrize(
    "certificate",
    [
        None,
        {},
        {"notAfter": "Jan  1 00:00:00 2030 GMT"},
        {"subjectAltName": (("URI", operator_login.IDENTITY),)},
        {
            "notAfter": "Jan  1 00:00:00 2030 GMT",
            "subjectAltName": (("DNS", operator_login.IDENTITY),),
        },
        {
            "notAfter": "Jan  1 00:00:00 2030 GMT",
            "subjectAltName": (("URI", operator_login.IDENTITY), ("DNS", "shop-0")),
        },
        {
            "notAfter": "Jan  1 00:00:00 2030 GMT",
            "subject": ((("commonName", operator_login.IDENTITY),),),
            "subjectAltName": (("URI", operator_login.IDENTITY + "/x"),),
        },
    ],
)
def test_only_the_reserved_name_alone_counts(certificate: Any) -> None:
    assert operator_login.certificate_of(certificate) is None
