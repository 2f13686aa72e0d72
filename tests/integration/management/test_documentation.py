"""The examples of docs/concepts, run as they stand against a real broker.

Each page is one program: its Python and shell blocks, in order. What an example claims it asserts
itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.members import REPOSITORY, Member, cluster

pytestmark = pytest.mark.timeout(300)

PAGES = sorted((REPOSITORY / "docs" / "concepts").glob("*.md"))

#: Pages whose examples need a profile.
PROFILES = {"queue-alternates": "mrg"}

#: The examples name no port, as a reader's own programs do not; `brokerctl` is on no PATH here.
PREAMBLE = """
import subprocess
import pika
pika.connection.Parameters.DEFAULT_PORT = {port}
def shell(text):
    function = 'brokerctl() {{ "{python}" -c "from brokerd.ctl.main import main; main()" "$@"; }}'
    subprocess.run(["bash", "-euc", function + chr(10) + text], check=True)
"""


def program(page: Path) -> str:
    """Return a page's examples as one Python program, "" if it has none."""
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    return "\n".join(code if kind == "python" else f"shell({code!r})" for kind, code in blocks)


@pytest.fixture
def member(tmp_path: Path, page: Path) -> Iterator[Member]:
    profile = {"BROKERD_COMPAT_PROFILE": PROFILES.get(page.stem, "brokerd")}
    with cluster(tmp_path, 1, **profile) as members:
        yield members[0]


def test_most_pages_have_an_example() -> None:
    assert sum(bool(program(page)) for page in PAGES) >= 12


def test_the_page_of_flow_control_says_that_the_watermark_is_no_cap() -> None:
    """R-OLD-4: the process may grow beyond it."""
    page = REPOSITORY / "docs" / "concepts" / "flow-control.md"
    assert "The watermark does not cap memory." in page.read_text()


@pytest.mark.parametrize("page", [page for page in PAGES if program(page)], ids=lambda p: p.stem)
def test_examples_do_what_the_page_says(member: Member, page: Path, tmp_path: Path) -> None:
    preamble = PREAMBLE.format(port=member.amqp_port, python=sys.executable)
    here = f"amqp://127.0.0.1:{member.amqp_port}/"
    file = tmp_path / "example.py"
    file.write_text(preamble + program(page).replace("amqp://127.0.0.1/", here))
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "BROKERD_ADDRESS": f"127.0.0.1:{member.grpc_port}",
        "LC_ALL": "C.UTF-8",
    }
    run = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment,
        cwd=tmp_path,
    )
    assert run.returncode == 0, f"{page.name}:\n{run.stdout}{run.stderr}{member.log()[-2000:]}"
