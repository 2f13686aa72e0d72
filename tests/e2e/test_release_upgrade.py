"""The release before, operator and members, is upgraded to this one while publishers wait."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_fixtures import IMAGES
from tests.e2e.conftest import CHART, TAG
from tests.e2e.image_versions import relabel
from tests.e2e.namespace import Namespace, resource
from tests.e2e.operators import helm, in_place_of
from tests.e2e.reach import Reach
from tests.e2e.test_under_load import (
    NAME,
    QUEUE,
    Record,
    cluster,
    under_load,
    wait_rolled,
    wait_whole,
)

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

AGED = "e2e-aged"
OLD_TAG = "release"
OLD = "0.0.1"


@pytest.fixture
def aged(installed: Namespace, tmp_path: Path) -> Iterator[Namespace]:
    """A cluster of the release whose checkout, with its images, E2E_RELEASE names."""
    if not (given := os.environ.get("E2E_RELEASE")):
        pytest.skip("E2E_RELEASE names no release before: make e2e-nightly does")
    for name in ("broker", "operator"):
        archive = Path(given) / ".k8s" / "cache" / "images" / f"{name}.tar"
        made = tmp_path / f"{name}.tar"
        relabel(archive, made, IMAGES[name].replace(":dev", f":{OLD_TAG}"), OLD)
        installed.kube.load(made)
        made.unlink()
    chart = Path(given) / "charts" / "brokerd-operator"
    with in_place_of(installed, [AGED], chart, OLD_TAG):
        space = Namespace(installed.kube, AGED)
        space.apply(cluster())
        space.apply(resource("Queue", QUEUE, brokerRef={"name": NAME}, type="quorum"))
        wait_whole(space)
        space.wait_ready(f"queue/{QUEUE}")
        yield space


def test_release_before_is_upgraded(aged: Namespace, record_property: Record) -> None:
    reach = Reach(aged, NAME)
    with under_load(reach, record_property):
        helm("upgrade", aged.kube, [AGED], CHART, TAG)
        wait_rolled(aged, IMAGES["broker"])
    reach.close()
