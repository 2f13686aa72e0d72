"""Every decoder is fuzzed with atheris, two at a time, for a few seconds each.

Most of what libFuzzer finds from these seeds it finds at once; `.ci/run` gives each a minute, as
`make fuzz SECONDS=60` does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.__main__ import fuzz_all
from tests.fuzz.names import NAMES

SECONDS = int(os.environ.get("FUZZ_SECONDS", "6"))


@pytest.mark.slow
@pytest.mark.timeout(len(NAMES) * (SECONDS + 30))
def test_no_decoder_raises_hangs_or_grows(tmp_path: Path) -> None:
    """SEC-40, SEC-42: no exception but the protocol's, at most 10 s and 700 MB."""
    assert fuzz_all(list(NAMES), SECONDS, tmp_path)
