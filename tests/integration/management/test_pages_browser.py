"""The pages for people in a real browser: nothing hangs over, all can be read and reached.

Pictures lie in PAGES_PICTURES if that names a folder, for somebody to look at.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.integration import chromium
from tests.integration.clients import fetched
from tests.integration.members import Member, cluster

pytestmark = pytest.mark.timeout(400)

PHONE, DESK = 390, 1280
#: Where axe-core looks: both colours and both widths, in half of the time.
JUDGED = {("light", DESK), ("dark", PHONE)}
PAGES = {
    "overview": "/?sort=messages_ready&sort_reverse=true",
    "queue": "/pages/queues/%2F/orders",
    "long-queue": "/pages/queues/%2F/" + "n" * 255,
    "no-queue": "/pages/queues/%2F/nowhere",
}
OVERHANG = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: What axe-core finds at the levels A and AA of WCAG 2.2, contrast and labels among it.
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE = f"""axe.run({{runOnly: {LEVELS}}}).then(found => found.violations.map(
    one => one.id + ": " + one.nodes.map(node => node.html).join(" | ")))"""


def _fill(member: Member) -> None:
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        orders = {"x-dead-letter-exchange": "dead", "x-queue-type": "quorum"}
        channel.queue_declare("orders", durable=True, arguments=orders)
        channel.queue_declare("n" * 255, arguments={"x-message-ttl": 3_600_000})
        channel.queue_bind("orders", "amq.topic", "order.#")
        for number in range(60):
            channel.queue_declare(f"many-{number}")
        for _ in range(3):
            channel.basic_publish("", "orders", b"x")


async def test_pages_fit_and_can_be_used_by_everybody(tmp_path: Path) -> None:
    """Light and dark, on a phone and at a desk: one browser for all, since it takes a while."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is missing: apt-get install chromium")
    axe = fetched.axe()
    pictures = Path(os.environ.get("PAGES_PICTURES") or tmp_path)
    problems = []
    profile = tmp_path / "profile"
    profile.mkdir()
    with cluster(tmp_path, 1) as (member,):
        _fill(member)
        async with chromium.tab(program, profile, "guest:guest") as tab:
            for scheme in ("light", "dark"):
                for width in (PHONE, DESK):
                    await tab.look(width, scheme)
                    for name, path in PAGES.items():
                        await tab.go(f"http://127.0.0.1:{member.management_port}{path}")
                        where = f"{name} {scheme} {width}"
                        await tab.picture(pictures / f"{where}.png".replace(" ", "-"))
                        overhang = await tab.run(OVERHANG)
                        problems += [f"{where}: hangs over by {overhang} px"] * (overhang > 0)
                        if (scheme, width) in JUDGED:
                            await tab.run(axe)
                            problems += [f"{where}: {found}" for found in await tab.run(AXE)]
            # The pages are as they were meant: in the dark, dark, and with the style sheet.
            await tab.look(DESK, "dark")
            await tab.go(f"http://127.0.0.1:{member.management_port}/")
            color = await tab.run("getComputedStyle(document.body).backgroundColor")
            assert color == "rgb(20, 24, 28)"
            rows = await tab.run("document.querySelectorAll('main tbody tr').length")
            assert rows > 50
    assert problems == []


async def test_a_page_is_searched_and_sorted_by_keyboard_and_click(tmp_path: Path) -> None:
    """What people do: look for a queue, follow its link, sort by depth."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is missing: apt-get install chromium")
    profile = tmp_path / "profile"
    profile.mkdir()
    names = (
        "[...document.querySelectorAll('main a[href^=\"/pages/queues/\"]')].map(a => a.textContent)"
    )
    with cluster(tmp_path, 1) as (member,):
        _fill(member)
        async with chromium.tab(program, profile, "guest:guest") as tab:
            await tab.go(f"http://127.0.0.1:{member.management_port}/")
            await tab.click("form button", "document.querySelector('input').value = 'RDER'")
            assert await tab.run(names) == ["orders"]
            await tab.click("main a[href^='/pages/queues/']")
            assert "orders" in await tab.run("document.querySelector('h1').textContent")
            await tab.go(f"http://127.0.0.1:{member.management_port}/")
            await tab.click("a[href*='sort=messages_ready']")
            assert (await tab.run(names))[0] == "orders"
