"""What the end-to-end tests share: two real nodes, and the project's images in them."""

from __future__ import annotations

from tests.cluster_fixtures import images as images
from tests.cluster_fixtures import kube_nodes as kube_nodes
