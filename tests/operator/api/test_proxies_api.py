"""An operator in an environment that names a proxy, against a real API server."""

from __future__ import annotations

import http.server
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import kubernetes
import pytest
from brokerd_operator import selftest
from brokerd_operator.sources.api import Api

from tests.cluster_fixtures import Kubernetes
from tests.operator.api_fixtures import api as api
from tests.operator.api_fixtures import broker as broker
from tests.operator.broker_thread import BrokerThread
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(200)]

#: Takes no connection.
PROXY = "http://127.0.0.1:9"


@pytest.fixture
def namespace(api: Kubernetes) -> Iterator[Namespace]:
    api.kubectl("create", "namespace", "op-proxies")
    yield Namespace(api, "op-proxies")
    api.kubectl("delete", "namespace", "op-proxies")


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, PROXY)
        monkeypatch.setenv(name.lower(), PROXY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_no_proxy_takes_networks_and_brokers_are_asked_past_every_proxy(
    namespace: Namespace, broker: BrokerThread, proxied: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxied.setenv("NO_PROXY", "10.0.0.0/8,127.0.0.0/8,.svc")
    log = tmp_path / "operator.log"
    with running(OperatorProcess(namespace.cluster.kubeconfig, namespace.name, log)):
        namespace.connect(broker.broker.address)
        namespace.wait_reason("brokerconnection", "prod", "Available")


def test_an_operator_whose_api_server_does_not_answer_is_not_ready(
    namespace: Namespace, proxied: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    process = OperatorProcess(namespace.cluster.kubeconfig, namespace.name, log)
    process.start()
    proxied.undo()

    def answer() -> str:
        try:
            return process.fetch("readyz")
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"
        except OSError:
            return ""

    try:
        wait_for("it says why", lambda: answer().startswith("503 Lease: no answer"))
        assert process.fetch("healthz") == "ok\n"
    finally:
        process.stop()


def test_inside_a_cluster_the_api_server_is_asked_past_every_proxy(
    proxied: pytest.MonkeyPatch,
) -> None:
    def load(client_configuration: kubernetes.client.Configuration) -> None:
        client_configuration.host = "https://10.96.0.1:443"

    proxied.setattr(kubernetes.config, "load_incluster_config", load)
    found = Api()
    assert found._client.rest_client.pool_manager.proxy is None
    found.close()


class _Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_the_self_test_asks_the_operator_past_every_proxy(proxied: pytest.MonkeyPatch) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Ready) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert selftest._ask(f"http://127.0.0.1:{server.server_port}/readyz") == ""
