"""What the end-to-end tests share: two real nodes."""

from __future__ import annotations

from tests.cluster_fixtures import kube_nodes as kube_nodes
