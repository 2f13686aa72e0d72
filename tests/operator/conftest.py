"""What the tests of resources share: a real Kubernetes API."""

from __future__ import annotations

from tests.cluster_fixtures import kube_api as kube_api
