"""Fuzzing with atheris: `python -m tests.fuzz --seconds 60` runs every target, two at a time.

`python -m tests.fuzz --target tables --seconds 60` runs one, in this process, as the workers do:
libFuzzer counts the branches of the target's modules, and ends with an error for an exception that
the target does not allow, for an input that takes longer than TIMEOUT_S (a hang) and for more than
MEMORY_MB of memory (growth).  The corpus starts from the project's own encoders; `--corpus FOLDER`
keeps what was found for the next run.  A finding prints its input, to become a unit test.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.names import NAMES, group_of
from tests.fuzz.target import Target

#: No input of a few thousand bytes may keep a decoder busy for so long, on two loaded cores.
TIMEOUT_S = 10
#: The interpreter with everything imported has about 150.
MEMORY_MB = 700
WORKERS = 2
#: What a worker needs to import and to instrument, beside its seconds.
START_S = 90
REPOSITORY = Path(__file__).resolve().parents[2]


def fuzz_one(name: str, seconds: int, corpus: Path, artefacts: Path) -> None:
    """Run one target; libFuzzer ends the process."""
    import atheris

    group = group_of(name)
    with atheris.instrument_imports(include=list(group.packages)):
        module = importlib.import_module(group.module)
    target: Target = module.TARGETS[name]
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = (
        f"-max_total_time={seconds}",
        f"-max_len={target.bytes_max}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={artefacts}/",
        "-seed=1",
        "-print_final_stats=1",
    )
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()


def _worker(name: str, seconds: int, corpus: Path) -> tuple[str, int, str, list[bytes]]:
    """Run one target in a process of its own; return its name, status, output and findings."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzz", "--target", name]
        command += ["--seconds", str(seconds), "--corpus", str(corpus / name)]
        command += ["--artefacts", folder]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds + START_S,
            )
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            status, output = 1, (error.stdout or b"") + b"\nthe worker did not end"
        found = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    return name, status, output.decode(errors="replace"), found


def _figure(output: str, name: str) -> str:
    """One of libFuzzer's final figures."""
    found = [line.split()[-1] for line in output.splitlines() if line.startswith(f"stat::{name}")]
    return found[0] if found else "?"


def fuzz_all(names: list[str], seconds: int, corpus: Path) -> bool:
    """Run targets two at a time; say what each did; return whether all are clean."""
    is_clean = True
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, status, output, found in pool.map(
            lambda each: _worker(each, seconds, corpus), names
        ):
            runs, memory = _figure(output, "number_of_executed"), _figure(output, "peak_rss")
            verdict = "clean" if not status else "FOUND SOMETHING"
            print(f"{name:20} {runs:>9} inputs, {memory:>4} MB: {verdict}", flush=True)
            if status:
                is_clean = False
                print(output[-6000:])
                for data in found:
                    print(f"{name}: base64 of the input: {base64.b64encode(data).decode()}")
    return is_clean


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--target", choices=NAMES, help="one target, in this process")
    parser.add_argument("--targets", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--corpus", type=Path, help="folder that keeps the inputs")
    parser.add_argument("--artefacts", type=Path, default=Path())
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = given.corpus or Path(folder)
        if given.target:
            fuzz_one(given.target, given.seconds, corpus, given.artefacts)
            return
        began = time.monotonic()
        is_clean = fuzz_all(given.targets, given.seconds, corpus)
        print(f"fuzz: {len(given.targets)} targets in {time.monotonic() - began:.0f} s")
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
