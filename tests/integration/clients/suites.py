"""Runs the established clients' own suites, unpatched, against brokerd and against RabbitMQ.

Each suite has its broker for itself, in a network namespace where 127.0.0.1:5672 and 5671 are free.
Prints a table, and which tests passed on some brokers only. `make client-suites` runs all.
RABBITMQ_BIN: the folder of the programs of a second RabbitMQ, which is then called `second`.

    python -m tests.integration.clients.suites [--broker brokerd|rabbitmq|second]... [SUITE...]
        [--class server.Permissions]... [--class-seconds 1000]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.clients import brokers, certificates, fetched, suite_sources
from tests.integration.clients.fetched import PROGRAMS
from tests.integration.clients.namespace import Namespace, namespace

STAND_INS = Path(__file__).with_name("stand_ins.py")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
#: What a suite did: name of a test to PASSED, FAILED or SKIPPED.
Results = dict[str, str]


@dataclass(slots=True)
class Place:
    """Where a suite runs: the namespace, its broker, and a folder for what it leaves."""

    inside: Namespace
    broker: brokers.Broker
    folder: Path
    #: Of a Java suite only these classes, where there are any; how long each may take.
    classes: tuple[str, ...]
    class_seconds: int

    def run(self, *command: str, cwd: Path, seconds: float, **env: str) -> str:
        """Run a command of a suite; its output is kept beside the broker's log."""
        done = self.inside.run(*command, timeout=seconds, env=env, cwd=cwd)
        (self.folder / "suite.out").write_text(done.stdout)
        return done.stdout

    def stand_in(self, *args: str) -> None:
        """Start one of the stand-ins; it ends with the namespace."""
        log = self.folder / f"{args[0]}.log"
        self.inside.start(sys.executable, str(STAND_INS), *args, log=log)


def matches(said: str, pattern: str, words: dict[str, str]) -> Results:
    """Read lines of (word, test) or (test, word); a test that failed once has failed."""
    found: Results = {}
    for match in re.finditer(pattern, said, re.MULTILINE):
        test, word = match["test"], match["word"]
        if found.get(test) != FAILED:
            found[test] = words[word]
    return found


def amqp091_go(place: Place) -> Results:
    """All tests of the module; it cuts connections through the management API."""
    folder = suite_sources.go("amqp091-go")
    said = place.run(
        *("./suite.test", "-test.v", "-test.timeout", "1000s"),
        cwd=folder,
        seconds=1020,
        RABBITMQ_RABBITMQCTL_PATH=str(place.broker.control),
        AMQP_URL="amqp://guest:guest@127.0.0.1:5672/",
    )
    words = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
    return matches(said, r"^--- (?P<word>PASS|FAIL|SKIP): (?P<test>\S+)", words)


#: A block of Ginkgo's report: what it is about, the example, its place, and how it went.
GINKGO = re.compile(
    r"^(?P<about>\S[^\n]*?) *\n  (?P<example>[^\n]+)\n  \S+:\d+\n(?P<said>.*)",
    re.MULTILINE | re.DOTALL,
)


def rabbit_hole(place: Place) -> Results:
    """All examples of the Go client of the management API, after what its bin/ci prepares."""
    folder = suite_sources.go("rabbit-hole")
    for command in (
        ("add_vhost", "rabbit/hole"),
        ("set_permissions", "-p", "rabbit/hole", "guest", ".*", ".*", ".*"),
        ("set_cluster_name", brokers.RABBIT_NODE),
    ):
        place.run(str(place.broker.control), *command, cwd=folder, seconds=60)
    said = place.run(
        *("./suite.test", "-ginkgo.v", "-ginkgo.noColor", "-ginkgo.seed", "1"),
        *("-test.timeout", "1500s"),
        cwd=folder,
        seconds=1520,
    )
    found: Results = {}
    for block in re.split(r"^-{30}$", said, flags=re.MULTILINE):
        match = GINKGO.search(block)
        if match is not None:
            has_failed = re.search(r"^• Failure|^•!", match["said"], re.MULTILINE)
            found[f"{match['about']}: {match['example']}"] = FAILED if has_failed else PASSED
    return found


def amqplib(place: Place) -> Results:
    """All test files; each test by its file and its place in it."""
    folder = suite_sources.node()
    found: Results = {}
    for file in sorted((folder / "test").glob("*.test.js")):
        said = place.run("node", str(file), cwd=folder, seconds=60)
        for number, match in enumerate(re.finditer(r"^ *(not ok|ok) \d+ - (.*)$", said, re.M)):
            verdict = PASSED if match[1] == "ok" else FAILED
            found[f"{file.name}:{number}:{match[2].partition(' #')[0]}"] = verdict
        if "killed after" in said:
            found[f"{file.name}: given up"] = FAILED
    return found


def _pytest(place: Place, suite: str, *args: str, seconds: float, **env: str) -> Results:
    folder = suite_sources.python()
    (source,) = folder.glob(f"{suite}-*/")
    command = [str(folder / "env" / "bin" / "python"), "-m", "pytest", "-v", "--tb=short"]
    command += ["-p", "no:cacheprovider", "--timeout", "30", "-W", "default"]
    said = place.run(*command, *args, cwd=source, seconds=seconds, **env)
    words = {"PASSED": PASSED, "FAILED": FAILED, "ERROR": FAILED, "SKIPPED": SKIPPED}
    found = matches(said, r"^(?P<test>\S+::.+?) (?P<word>PASSED|FAILED|ERROR|SKIPPED)", words)
    if "killed after" in said:
        found[f"{' '.join(args)}: given up"] = FAILED
    return found


def py_amqp(place: Place) -> Results:
    """t/integration without the tests of certificates that the archive does not hold."""
    return _pytest(
        place, "amqp", "t/integration/test_rmq.py", "-k", "not tls", "--reruns", "0", seconds=120
    )


def kombu(place: Place) -> Results:
    """t/integration of the AMQP transport."""
    return _pytest(place, "kombu", "t/integration/test_py_amqp.py", "--reruns", "0", seconds=240)


#: Of aio-pika's files: those that measure Python's memory, cut TCP through a proxy of their own, or
#: repeat test_amqp.py over TLS and over robust connections (ten minutes each).
AIO_PIKA_LEFT_OUT = {"test_memory_leak.py", "test_amqps.py", "test_amqp_robust.py"}
AIO_PIKA_LEFT_OUT |= {"test_amqp_robust_proxy.py", "test_rpc_factory.py"}


def aio_pika(place: Place) -> Results:
    """The files one by one: what hangs costs the rest of its file only."""
    place.stand_in("docker", "2375")
    (source,) = suite_sources.python().glob("aio_pika-*/")
    found: Results = {}
    for file in sorted((source / "tests").glob("test_*.py")):
        if file.name not in AIO_PIKA_LEFT_OUT:
            name, docker = f"tests/{file.name}", "tcp://127.0.0.1:2375"
            found |= _pytest(place, "aio_pika", name, seconds=600, DOCKER_HOST=docker)
    return found


def amqpstorm(place: Place) -> Results:
    """The tests of its management API, and those over AMQP; those of TLS need their author's."""
    return _pytest(
        place,
        "amqpstorm",
        *("amqpstorm/tests/functional", "--ignore", "amqpstorm/tests/functional/ssl"),
        seconds=600,
        AMQP_HOST="127.0.0.1",
        AMQP_USERNAME="guest",
        AMQP_PASSWORD="guest",
        AMQP_URI="amqp://guest:guest@127.0.0.1:5672/%2F",
        AMQP_HTTP_URL="http://127.0.0.1:15672",
    )


def _java_classes(tests: Path, suite: str) -> Iterator[str]:
    """Yield the classes that a JUnit suite names, without those of other packages."""
    package, _, name = f"com.rabbitmq.client.test.{suite}".rpartition(".")
    folder = tests / "java" / package.replace(".", "/")
    source = (folder / f"{name}.java").read_text()
    for listed in re.findall(r"(\w+)\.class", source[source.index("SuiteClasses") :]):
        if (folder / f"{listed}.java").exists() and listed not in suite_sources.JAVA_LEFT_OUT:
            yield f"{package}.{listed}"


#: A class that hangs must not cost the rest; eight times 10,000 basic.get take a while. On a busy
#: machine rabbitmqctl makes some take longer, and those that are given up disturb the next ones.
CLASS_SECONDS = 240


def _java(place: Place, suite: str, seconds: float, over: str = "") -> Results:
    folder = suite_sources.java()
    home = place.folder / "server"
    home.mkdir()
    shutil.copy(PROGRAMS / "java" / "control.mk", home / "Makefile")
    settings = {
        "make.bin": "make",
        "rabbitmq.dir": home,
        "rabbitmqctl.bin": place.broker.control,
        "test-broker.A.nodename": brokers.RABBIT_NODE,
        "test-broker.A.node_port": 5672,
        "test-broker.B.nodename": "hare@localhost",
        "test-broker.B.node_port": 5673,
    }
    command = ["java", "-cp", f"{over}classes:tests/resources:lib/*"]
    command += [f"-D{name}={value}" for name, value in settings.items()]
    classes = [f"com.rabbitmq.client.test.{name}" for name in place.classes]
    classes = classes or list(_java_classes(folder / "tests", suite))
    command += ["Suite", str(place.class_seconds), *classes]
    limit = seconds * max(1.0, place.class_seconds / CLASS_SECONDS)
    said = place.run(*command, cwd=folder, seconds=limit)
    words = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
    return matches(said, r"^\.*(?P<word>PASS|FAIL|SKIP) (?P<test>\S+)", words)


#: Tests of the crates that are tried again, as often as their authors' own runner does.
TRIES = 3


def _cargo(place: Place, crate: str, vhost: str, seconds: float) -> Results:
    """The integration tests of a crate, one by one, after what its bin/ci prepares."""
    folder = suite_sources.cargo(crate)
    for command in (
        ("add_vhost", vhost),
        ("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*"),
        ("add_user", "rust3", "rust3"),
        ("set_permissions", "-p", "/", "rust3", ".*", ".*", ".*"),
        ("set_cluster_name", brokers.RABBIT_NODE),
    ):
        place.run(str(place.broker.control), *command, cwd=folder, seconds=60)
    words = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
    pattern = r"^test (?P<test>\S+) \.\.\. (?P<word>ok|FAILED|ignored)"
    # TEST_STATS_DELAY: milliseconds until a statistic is to be read.
    settings = suite_sources.CARGO | {"TEST_STATS_DELAY": "1500"}
    tests = [*suite_sources.CARGO_TEST, "--offline", "--", "--test-threads", "1"]
    said = place.run(*tests, cwd=folder, seconds=seconds, **settings)
    found = matches(said, pattern, words)
    for _ in range(TRIES - 1):
        failed = [test for test, verdict in found.items() if verdict == FAILED]
        if failed:
            again = place.run(*tests, "--exact", *failed, cwd=folder, seconds=seconds, **settings)
            found |= matches(again, pattern, words)
            said += again
    (place.folder / "suite.out").write_text(said)
    return found


def rabbitmqadmin(place: Place) -> Results:
    """rabbitmqadmin 2, which the crate's tests run as a program."""
    return _cargo(place, "rabbitmqadmin", "rust/rabbitmqadmin", 1200)


def rabbitmq_http_client(place: Place) -> Results:
    """The client of the management API that rabbitmqadmin 2 is made of."""
    return _cargo(place, "rabbitmq_http_client", "rust/http/api/client", 1200)


#: What programs of our own say of each use.
OWN_PROGRAM = (
    r"^(?P<word>PASS|FAIL) (?P<test>.+?)(?: \|.*)?$",
    {"PASS": PASSED, "FAIL": FAILED},
)


def bunny(place: Place) -> Results:
    """No source of bunny's own suite is to be had: a program with the main uses of it.

    RUBY: a Ruby that has the bunny to be tried.
    """
    program = shutil.copy(PROGRAMS / "ruby" / "uses.rb", place.folder)
    ruby = os.environ.get("RUBY") or "ruby"
    said = place.run(ruby, str(program), cwd=place.folder, seconds=600)
    return matches(said, *OWN_PROGRAM)


def spring_amqp(place: Place) -> Results:
    """No source of Spring AMQP's own suite is to be had: a program with the main uses of it."""
    command = [*fetched.spring_client("Uses"), "5672", "15672"]
    said = place.run(*command, cwd=place.folder, seconds=600)
    return matches(said, *OWN_PROGRAM)


#: Java suites: list of classes, and how long they take at most.
JAVA_SUITES = {
    "functional": ("functional.FunctionalTests", 2400),
    "server": ("server.ServerTests", 900),
    "client": ("ClientTests", 300),
}
#: Ways to the broker: what comes first on the class path.
JAVA_TRANSPORTS = {"": "", "-netty": "netty:"}


SUITES: dict[str, Callable[[Place], Results]] = {
    "amqp091-go": amqp091_go,
    "rabbit-hole": rabbit_hole,
    "amqplib": amqplib,
    "py-amqp": py_amqp,
    "kombu": kombu,
    "aio-pika": aio_pika,
    "amqpstorm": amqpstorm,
    "bunny": bunny,
    "spring-amqp": spring_amqp,
    "rabbitmqadmin": rabbitmqadmin,
    "rabbitmq-http-client": rabbitmq_http_client,
}
for _suite, (_classes, _seconds) in JAVA_SUITES.items():
    for _transport, _over in JAVA_TRANSPORTS.items():
        SUITES[f"java-{_suite}{_transport}"] = functools.partial(
            _java, suite=_classes, seconds=_seconds, over=_over
        )


def run(
    suite: str,
    which: str,
    keep: Path,
    classes: tuple[str, ...] = (),
    class_seconds: int = CLASS_SECONDS,
) -> Results:
    """Run one suite against one fresh broker."""
    keep.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="suites-") as name,
        namespace(f"suites-{suite[:8]}-{which[:1]}") as inside,
    ):
        folder = Path(name)
        made = certificates.make(folder / "certificates")
        (folder / which).mkdir()
        with brokers.BROKERS[which](inside, folder / which, made) as broker:
            results = SUITES[suite](Place(inside, broker, folder, classes, class_seconds))
        assert results, "no test ran: see " + str(keep)
        (keep / f"{suite}.{which}.json").write_text(json.dumps(results, indent=1))
        for left in ("suite.out", f"{which}/log"):
            if (folder / left).exists():
                target = keep / f"{suite}.{which}.{left.replace('/', '.')}"
                target.write_bytes((folder / left).read_bytes())
    return results


def summary(results: Results) -> str:
    """Return `passed of run`, and what was skipped."""
    counts = {word: list(results.values()).count(word) for word in (PASSED, FAILED, SKIPPED)}
    text = f"{counts[PASSED]} of {counts[PASSED] + counts[FAILED]}"
    return text + (f", {counts[SKIPPED]} skipped" if counts[SKIPPED] else "")


def main() -> int:
    """Run what was asked for; status 1 when RabbitMQ passed what brokerd did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=sorted(brokers.BROKERS), action="append")
    parser.add_argument("--keep", type=Path, default=Path(".client-suites"))
    parser.add_argument("--class", dest="classes", action="append", help="Java suites: only this")
    parser.add_argument("--class-seconds", type=int, default=CLASS_SECONDS)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="SUITE")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root: a network namespace for each broker")
    chosen = asked.broker or list(brokers.BROKERS)
    print("| suite | " + " | ".join(chosen) + " |", flush=True)
    worse = 0
    for suite in asked.suites or SUITES:
        found = {
            which: run(suite, which, asked.keep, tuple(asked.classes or ()), asked.class_seconds)
            for which in chosen
        }
        print(f"| {suite} | " + " | ".join(map(summary, found.values())) + " |", flush=True)
        for test in sorted(set().union(*found.values())):
            verdicts = {which: results.get(test, "not run") for which, results in found.items()}
            if PASSED in verdicts.values() and len(set(verdicts.values())) > 1:
                print(f"    {test}: {verdicts}", flush=True)
                worse += verdicts.get("brokerd", PASSED) != PASSED
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
