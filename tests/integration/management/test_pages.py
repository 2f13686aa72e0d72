"""The pages for people, as a browser asks for them: names from outside are text, and only that."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urljoin, urlparse

import pika
import pytest

from brokerd.ctl.client import AdminClient
from brokerd.ctl.settings import Settings
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "../../etc/passwd?x=1#y",
    "{{ 7 * 7 }}{% raw %}",
    "ü 漢字 \u202e",
    "n" * 255,
)


class Links(HTMLParser):
    """Elements and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


class Browser:
    """Asks a member as a user."""

    def __init__(self, member: Member, user: str = "guest", password: str = "guest") -> None:
        self._url = f"http://127.0.0.1:{member.management_port}"
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"} if user else {}

    def get(self, path: str) -> tuple[int, str, dict[str, str]]:
        """Return status, text and headers."""
        request = urllib.request.Request(urljoin(self._url, path), headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), dict(error.headers)

    def page(self, path: str, status: int = 200) -> tuple[str, Links]:
        """Return the text of a page, and its parts."""
        code, text, headers = self.get(path)
        assert (code, headers["Content-Type"]) == (status, "text/html; charset=utf-8"), text
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        parts = Links()
        parts.feed(text)
        return text, parts


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("pages"), 1) as members:
        yield members[0]


@pytest.fixture(scope="module")
def browser(member: Member) -> Browser:
    made = Browser(member)
    # The guest's first login hashes its password; the register has to have begun.
    eventually(lambda: made.get("/")[0] == 200, "the page is there")
    return made


def test_hostile_names_are_text_and_every_link_leads_somewhere(
    member: Member, browser: Browser
) -> None:
    connection = member.connect()
    channel = connection.channel()
    for name in HOSTILE:
        channel.queue_declare(name, arguments={"x-dead-letter-exchange": name})
        channel.queue_bind(name, "amq.topic", name)
        channel.basic_consume(name, lambda *_: None, consumer_tag=name)
    text, parts = browser.page("/")
    assert "{{ 7 * 7 }}{% raw %}" in text
    pages = [link for link in parts.links if link.startswith("/pages/queues/")]
    assert sorted(pages) == sorted(f"/pages/queues/%2F/{quote(name, safe='')}" for name in HOSTILE)
    for name in HOSTILE:
        made = pika.BasicProperties(headers={name: name}, type=name)
        channel.basic_publish("", name, name.encode(), made)
    for page in [*pages, *[f"{page}/messages" for page in pages]]:
        queue_text, queue_parts = browser.page(page)
        for seen, found in ((text, parts), (queue_text, queue_parts)):
            assert not found.elements & {"script", "img", "style", "iframe"}
            assert not [name for name in found.attributes if name.startswith("on")]
            assert "style" not in found.attributes
            assert "<script" not in seen
    for link in {*parts.links}:
        assert urlparse(link).netloc == "", "nothing comes from elsewhere"
        assert browser.get(link)[0] in (200, 404 if link == "/telemetry/report" else 200), link
    for name in HOSTILE:
        channel.queue_delete(name)
    connection.close()


def test_the_page_says_whether_all_is_well_and_finds_sorts_and_pages(
    member: Member, browser: Browser
) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(60):
        channel.queue_declare(f"many-{number:02}")
    for _ in range(3):
        channel.basic_publish("", "many-41", b"x")
    text, _ = browser.page("/")
    assert "All is well: one member runs, no alarm is on, every queue has a leader." in text
    assert "Page 1 of 2" in text
    names = re.compile(r"many-\d\d(?=</a>)")
    assert names.findall(text) == [f"many-{number:02}" for number in range(50)]
    assert names.findall(browser.page("/?page=2")[0]) == [f"many-{n}" for n in range(50, 60)]
    # A page that is not there, and a column that is none, are no errors.
    assert len(names.findall(browser.page("/?page=99&sort=nothing")[0])) == 50
    found = browser.page("/?sort=messages_ready&sort_reverse=true")[0]
    assert names.findall(found)[0] == "many-41"
    assert names.findall(browser.page("/?name=Y-5")[0]) == [f"many-{n}" for n in range(50, 60)]
    text, _ = browser.page("/pages/queues/%2F/many-41")
    assert "messages wait, and nobody consumes them" in text
    channel.queue_declare("lossy", arguments={"x-dead-letter-exchange": "gone"})
    text, _ = browser.page("/pages/queues/%2F/lossy")
    assert "There is no exchange 'gone' in this vhost" in unescape(text)
    channel.exchange_declare("gone")
    assert "There is no exchange" not in browser.page("/pages/queues/%2F/lossy")[0]
    channel.exchange_delete("gone")
    channel.queue_delete("lossy")
    for number in range(60):
        channel.queue_delete(f"many-{number:02}")
    connection.close()
    assert "no queue yet" in browser.page("/")[0]


def test_who_may_not_see_sees_nothing(member: Member, browser: Browser) -> None:
    for path in ("/", "/pages/queues/%2F/none", "/telemetry/report"):
        status, text, headers = Browser(member, "").get(path)
        assert (status, text) == (401, "")
        assert headers["WWW-Authenticate"].startswith("Basic ")
    assert Browser(member, "guest", "wrong").get("/")[0] == 401
    text, _ = browser.page("/pages/queues/%2F/none", 404)
    assert "There is no queue &#39;none&#39; in vhost &#39;/&#39;." in text
    status, text, headers = Browser(member, "").get("/pages/style.css")
    assert (status, headers["Content-Type"]) == (200, "text/css; charset=utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "url(" not in text


def test_the_report_is_shown_apart_from_the_pages(member: Member, browser: Browser) -> None:
    assert "No report yet" in browser.page("/telemetry/report", 404)[0]
    results = Path(member.data_dir) / "results"
    results.mkdir(exist_ok=True)
    (results / "report.html").write_text("<!DOCTYPE html><script>1</script>")
    status, text, headers = browser.get("/telemetry/report")
    assert (status, text) == (200, "<!DOCTYPE html><script>1</script>")
    assert "sandbox allow-scripts" in headers["Content-Security-Policy"]
    assert "allow-same-origin" not in headers["Content-Security-Policy"]
    (results / "report.html").unlink()


def test_all_is_not_well_where_the_report_has_findings(member: Member, browser: Browser) -> None:
    results = Path(member.data_dir) / "results"
    results.mkdir(exist_ok=True)
    kinds = [("RAISED", "critical"), ("RAISED", "warning"), ("RAISED", "warning")]
    told = {
        "as_of_us": 1_795_183_200_000_000,
        "findings": [
            {"status": status, "severity": severity}
            for status, severity in [*kinds, ("CLEAR", "critical"), ("RAISED", "info")]
        ],
    }
    file = results / "findings.json"
    file.write_text(json.dumps(told))
    said = "The audit report up to 2026-11-20 14:00 has 1 critical finding and 2 warnings."
    text, _ = browser.page("/")
    assert said in text
    assert "All is well" not in text
    file.write_text(json.dumps({"findings": [{}]}))
    assert "The findings of the audit report cannot be read" in browser.page("/")[0]
    file.write_text(json.dumps(told | {"findings": told["findings"][3:]}))
    assert "All is well: one member runs" in browser.page("/")[0]
    file.unlink()


def test_a_queue_whose_resource_sets_its_dead_letter_exchange_shows_it(
    member: Member, browser: Browser
) -> None:
    """The setting is no policy and no argument."""
    spec = {"type": "quorum", "settings": {"dead-letter-exchange": "amq.fanout"}}
    chosen = Settings(address=f"127.0.0.1:{member.ports['GRPC']}")
    with AdminClient(chosen, chosen.address) as client:
        client.put("queue", "/", "inline", spec)
        text, _ = browser.page("/pages/queues/%2F/inline")
        client.delete("queue", "/", "inline")
    assert "amq.fanout" in text
    assert "inline setting of its resource" in text
    assert "They are dropped" not in text


def test_the_messages_of_a_queue_and_why_they_are_there(member: Member, browser: Browser) -> None:
    connection = member.connect()
    channel = connection.channel()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "shown"}
    channel.queue_declare("shown")
    channel.queue_declare("shown-work", arguments=letters)
    for number in range(25):
        channel.basic_publish("", "shown", b"\x1b[31mbody %d" % number)
    channel.basic_publish("", "shown-work", b"\xff")
    method = eventually(lambda: channel.basic_get("shown-work")[0], "it is there")
    channel.basic_reject(method.delivery_tag, requeue=False)
    eventually(
        lambda: channel.queue_declare("shown", passive=True).method.message_count == 26, "it died"
    )
    text, parts = browser.page("/pages/queues/%2F/shown/messages")
    assert "body 0" in text
    assert "rejected in shown-work" in text
    assert "nothing says why" in text
    [more] = [link for link in parts.links if "page_token" in link]
    rest, parts = browser.page(more)
    assert "body 24" in rest
    assert "base64: /w==" in rest
    assert "page_token" not in "".join(parts.links)
    assert "no queue" in browser.page("/pages/queues/%2F/nothing/messages", 404)[0]
    browser.page("/pages/queues/%2F/shown/messages?page_token=x", 400)
    for queue in ("shown", "shown-work"):
        channel.queue_delete(queue)
    connection.close()
