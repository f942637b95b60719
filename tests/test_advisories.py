"""No version that pyproject.toml or constraints.txt allows has a known weakness that concerns how it is used."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LIST = tomllib.loads((ROOT / "docs" / "advisories.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
ADVISORIES: list[dict[str, Any]] = LIST["advisory"]
IDENTIFIER = re.compile(r"CVE-\d{4}-\d{4,}|GHSA(-[23456789cfghjmpqrvwx]{4}){3}|PYSEC-\d{4}-\d+")

Ranges = Mapping[str, SpecifierSet]


def requirements(project: Mapping[str, Any], extras: Iterable[str]) -> Ranges:
    """The range of every package that the extras ask for, those that they name of the project itself included."""
    own = project["project"]["name"]
    waiting = [Requirement(line) for line in project["project"]["dependencies"]]
    waiting += [Requirement(f"{own}[{extra}]") for extra in extras]
    ranges: dict[str, SpecifierSet] = {}
    while waiting:
        asked = waiting.pop()
        if asked.name == own:
            optional = project["project"]["optional-dependencies"]
            waiting += [Requirement(line) for extra in asked.extras for line in optional[extra]]
        else:
            name = canonicalize_name(asked.name)
            ranges[name] = ranges.get(name, SpecifierSet()) & asked.specifier
    return ranges


def direct() -> Ranges:
    """The range of every direct dependency, of all extras and of the build."""
    ranges = dict(requirements(PROJECT, PROJECT["project"]["optional-dependencies"]))
    for build in map(Requirement, PROJECT["build-system"]["requires"]):
        ranges[canonicalize_name(build.name)] = build.specifier
    return ranges


def lowest(allowed: SpecifierSet) -> Version:
    """The lower bound of a range, which has to have one."""
    bounds = [Version(part.version) for part in allowed if part.operator in (">=", "==", "~=")]
    if not bounds:
        raise ValueError(f"expected a lower bound, got {allowed or 'any version'}")
    return max(bounds)


def pins() -> dict[str, Version]:
    """Name and version of every line of constraints.txt."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    named = [line.split("==") for line in lines]
    return {canonicalize_name(name): Version(version) for name, version in named}


def is_affected(advisory: Mapping[str, Any], version: Version) -> bool:
    return any(SpecifierSet(part).contains(version, prereleases=True) for part in advisory["affected"])


def affected_within(advisory: Mapping[str, Any], allowed: SpecifierSet) -> list[Version]:
    """Affected versions that a range allows: its lower bound, or where a stretch of affected versions begins."""
    begins = {Version(part.version) for stretch in advisory["affected"] for part in SpecifierSet(stretch)}
    tried = [lowest(allowed), *sorted(begins)]
    return [version for version in tried if allowed.contains(version) and is_affected(advisory, version)]


def test_every_direct_dependency_is_listed() -> None:
    with_advisories = {advisory["package"] for advisory in ADVISORIES}
    assert sorted(direct().keys() - with_advisories - set(LIST["none_known"])) == []
    assert with_advisories.isdisjoint(LIST["none_known"])


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda advisory: f"{advisory['package']}:{advisory['ids'][0]}")
def test_advisory_is_complete_and_none_that_concerns_us_is_allowed(advisory: dict[str, Any]) -> None:
    package = advisory["package"]
    assert package == canonicalize_name(package)
    assert advisory["ids"]
    assert all(IDENTIFIER.fullmatch(name) for name in advisory["ids"])
    assert advisory["affected"]
    assert not advisory["fixed"] or not is_affected(advisory, Version(advisory["fixed"]))
    assert advisory["what"].endswith(".")
    assert advisory["why"]
    assert advisory["source"].startswith("https://")
    if advisory["concerns"]:
        allowed = direct().get(package)
        assert allowed is None or affected_within(advisory, allowed) == []
        pin = pins().get(package)
        assert pin is None or not is_affected(advisory, pin)


def test_review_has_a_day_and_no_advisory_is_listed_twice() -> None:
    assert isinstance(LIST["reviewed"], date)
    listed = [(advisory["package"], name) for advisory in ADVISORIES for name in advisory["ids"]]
    assert len(listed) == len(set(listed))


def test_pins_are_within_the_ranges_of_pyproject() -> None:
    ranges, pinned = direct(), pins()
    assert {name: pinned[name] for name in ranges.keys() & pinned.keys() if pinned[name] not in ranges[name]} == {}


def test_all_that_the_makefile_installs_is_pinned() -> None:
    installed = [line for line in MAKEFILE.splitlines() if "pip install" in line and "-e " in line and line[0] == "\t"]
    extras = [extra for line in installed for extra in re.findall(r"-e \"\.\[([\w,]+)\]\"", line)]
    assert extras == ["bench", "dev"]
    assert all("-c constraints.txt" in line for line in installed)
    assert "$(STAMP): pyproject.toml constraints.txt\n" in MAKEFILE
    assert sorted(requirements(PROJECT, extras).keys() - pins().keys()) == []


def test_constraints_are_exact_and_sorted() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line.startswith("#") for line in lines[:3]] == [True, True, False]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines[2:])
    assert lines[2:] == sorted(lines[2:], key=str.upper)


@pytest.mark.parametrize(
    ("affected", "allowed", "expected"),
    [
        (["<2.6.6"], ">=2.6", ["2.6"]),
        (["<2.6.6"], ">=2.6.6", []),
        (["==2.6.2", "==2.6.3"], ">=2.6", ["2.6.2", "2.6.3"]),
        (["==2.6.2", "==2.6.3"], ">=2.6,!=2.6.2,!=2.6.3", []),
        ([">=15.0.0,<23.0.1"], ">=14", ["15.0.0"]),
        ([">=15.0.0,<23.0.1"], ">=24", []),
        (["<=2.10.0"], ">=2.10", ["2.10", "2.10.0"]),
        (["<4.25.8", ">=5.26.0rc1,<5.29.5"], ">=5.29", ["5.29"]),
    ],
)
def test_affected_within_finds_what_a_range_lets_in(affected: list[str], allowed: str, expected: list[str]) -> None:
    found = affected_within({"affected": affected}, SpecifierSet(allowed))
    assert [str(version) for version in found] == expected


def test_requirements_follow_extras_of_the_project_itself() -> None:
    optional = {"all": ["own[some]", "B_b>=2"], "some": ["c>=3", "b-b<9"], "other": ["d>=4"]}
    project = {"project": {"name": "own", "dependencies": ["a>=1"], "optional-dependencies": optional}}
    expected = {"a": SpecifierSet(">=1"), "b-b": SpecifierSet("<9,>=2"), "c": SpecifierSet(">=3")}
    assert requirements(project, ["all"]) == expected


def test_lowest_needs_a_lower_bound() -> None:
    assert lowest(SpecifierSet(">=1.2,<3")) == Version("1.2")
    with pytest.raises(ValueError, match="expected a lower bound, got <3"):
        lowest(SpecifierSet("<3"))
