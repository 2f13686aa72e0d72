"""The tool that says which rule stands in which test, and that enough of them do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import spec_coverage
from tools.spec_coverage import Rules, coverage, problems, read_rules

MAKEFILE = 'PARTS := "tests/unit" \\\n  tests/test_one.py\n'


def write(root: Path, name: str, text: str) -> None:
    """Write one file below `root`."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "Makefile", MAKEFILE)
    return tmp_path


def test_an_id_counts_in_name_docstring_comment_and_decorator_of_a_test(root: Path) -> None:
    write(
        root,
        "tests/test_one.py",
        '"""R-AE-1 of the module counts for nobody."""\n'
        "# R-AE-2 neither.\n"
        "def test_r_ae_3_holds():\n"
        '    """R-AE-4, R-RT-T2 and SEC-9."""\n'
        "    # R-AE-5\n"
        "@mark.parametrize('rule', ['R-AE-6'])\n"
        "async def test_more(rule): ...\n"
        "def build():\n"
        '    """R-AE-7: nobody calls a builder a test."""\n',
    )
    found = coverage(root)
    one, more = "tests/test_one.py::test_r_ae_3_holds", "tests/test_one.py::test_more"
    assert found == {
        "R-AE-3": [one],
        "R-AE-4": [one],
        "R-AE-5": [one],
        "R-AE-6": [more],
        "R-RT-T2": [one],
        "SEC-9": [one],
    }


def test_tables_count_for_the_tests_that_use_them_also_from_other_modules(root: Path) -> None:
    write(root, "tests/unit/cases.py", "FAR = ['R-AE-3']\nNOT_ASKED_FOR = ['R-AE-4']\n")
    write(
        root,
        "tests/unit/test_two.py",
        "from tests.unit.cases import FAR\n"
        "PART = ['R-AE-1']\n"
        "CASES: list = [*PART, 'R-AE-2']\n"
        "UNUSED = ['R-AE-5']\n"
        "@mark.parametrize('rule', CASES + FAR)\n"
        "def test_cases(rule): ...\n",
    )
    assert sorted(coverage(root)) == ["R-AE-1", "R-AE-2", "R-AE-3"]


def test_transcripts_and_state_machines_are_tests(root: Path) -> None:
    write(
        root,
        "tests/unit/test_three.py",
        'SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))\n'
        "@mark.parametrize('path', SCENARIOS)\n"
        "def test_scenario(path): ...\n"
        "def test_there_are_some():\n"
        "    assert SCENARIOS\n"
        "class Machine(RuleBasedStateMachine):\n"
        '    """R-TEST-6."""\n'
        "TestMachine = Machine.TestCase\n"
        "class Idle(RuleBasedStateMachine):\n"
        '    """R-TEST-7."""\n',
    )
    write(root, "tests/unit/chain.txt", "A chain (R-AE-3).\n")
    assert coverage(root) == {
        "R-AE-3": ["tests/unit/test_three.py::test_scenario[chain]"],
        "R-TEST-6": ["tests/unit/test_three.py::Machine"],
    }


def test_only_what_make_test_runs_counts(root: Path) -> None:
    write(root, "tests/slow/test_four.py", 'def test_it():\n    """R-AE-1"""\n')
    write(root, "tests/unit/builders.py", 'def test_it():\n    """R-AE-2"""\n')
    assert coverage(root) == {}


PAGE = """
## 1. One

| id | about |
|---|---|
| R-AE-1 | a |
| R-AE-2 | b |

## 10. Later

| R-FX-1 | c |

## Security: Framing

| SEC-36 | d |

## Security: Pods

| SEC-29 | e |

## No behaviour to test

| R-AE-2 | it is history |

## Not covered

"""
ALL = {"R-AE-1": ["t"], "SEC-36": ["t"]}


def test_the_page_is_read_by_its_headings() -> None:
    rules = read_rules(PAGE)
    assert rules.chapters == {"1": ("One", ["R-AE-1", "R-AE-2"]), "10": ("Later", ["R-FX-1"])}
    assert rules.security == {"Framing": ["SEC-36"], "Pods": ["SEC-29"]}
    assert (rules.no_claim, rules.not_covered) == ({"R-AE-2": "it is history"}, {})
    assert problems(rules, ALL) == []
    with pytest.raises(ValueError, match="R-AE-1 is listed twice"):
        read_rules(PAGE + "## 2. Two\n| R-AE-1 | again |\n")


def test_gaps_unknown_ids_and_stale_reasons_are_problems() -> None:
    rules = read_rules(PAGE + "| R-AE-1 | nobody knows how |\n| R-AE-9 | gone |\n")
    found = {"R-AE-1": ["t"], "R-AE-77": ["u"]}
    assert problems(rules, found) == [
        "R-AE-77 is named by u and is no rule",
        "R-AE-1 has a reason and a test: t",
        "R-AE-9 has a reason and is no rule",
        "SEC-36 (security, Framing) has no test",
    ]
    assert problems(read_rules(PAGE), {"SEC-36": ["t"]}) == [
        "0 of 1 rules are covered, less than 98%",
        "R-AE-1 has neither a test nor a reason",
    ]


def test_the_list_is_compared_with_a_folder_of_the_specification(tmp_path: Path) -> None:
    write(tmp_path, "03.md", "- **R-AE-1** a\n- see R-AE-5\n| R-ERR-2 | b | c |\n")
    rules = Rules(titles={"R-AE-1": "a", "R-AE-2": "b"})
    assert spec_coverage.compare(rules, tmp_path) == [
        f"R-ERR-2 is stated in {tmp_path} and not listed",
        f"R-AE-2 is listed and not stated in {tmp_path}",
    ]


def test_the_list_has_every_rule_of_the_specification() -> None:
    rules = read_rules((spec_coverage.ROOT / spec_coverage.RULES).read_text())
    listed = [name for _, names in rules.chapters.values() for name in names]
    assert len(listed) == 479
    assert sum(map(len, rules.security.values())) == 60


@pytest.mark.timeout(300)  # every test of the house is read
def test_enough_rules_stand_in_tests_that_run() -> None:
    """`make spec-coverage` prints the table, and what is missing with the reason."""
    rules = read_rules((spec_coverage.ROOT / spec_coverage.RULES).read_text())
    assert problems(rules, coverage(spec_coverage.ROOT)) == []
