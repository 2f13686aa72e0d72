"""What tests of the operator against a real API server begin with: the CRDs, and a fake broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import CLUSTER, Kubernetes
from tests.operator.broker_thread import BrokerThread

CRDS = CLUSTER.parents[1] / "crds"


@pytest.fixture(scope="module")
def api(kube_api: Kubernetes) -> Kubernetes:
    kube_api.kubectl("apply", "-f", str(CRDS))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    return kube_api


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    yield thread
    thread.close()
