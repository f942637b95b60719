"""What a run of a benchmark leaves behind, and its JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ldreg.benchmarking.contest import OWN, Goal, Size
from ldreg.benchmarking.measure import Measurement


@dataclass(frozen=True)
class Result:
    """One contender at one size: measured, or skipped for a reason."""

    contender: str
    size: Size
    measured: Measurement | None = None
    deviation: float | None = None  # from our result; None where there is none to compare
    skipped: str = ""


@dataclass(frozen=True)
class Verdict:
    """What was reached of a goal, against whom, and who of those it speaks of was not measured.

    `value` and `met` are None where nothing could be said.
    """

    goal: Goal
    value: float | None
    met: bool | None
    rival: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One benchmark, run once: its results, the verdicts on its goals, and where and how it ran."""

    benchmark: str
    command: str
    k: int
    seed: int
    repeats: int
    environment: dict[str, Any]
    results: tuple[Result, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes in the order they were run."""
        return tuple(dict.fromkeys(result.size for result in self.results))

    def at(self, size: Size) -> dict[str, Result]:
        """Results of one size by contender."""
        return {result.contender: result for result in self.results if result.size == size}

    def ratio(self, result: Result) -> float | None:
        """Time of a contender over ours at the same size."""
        own = self.at(result.size).get(OWN)
        if own is None or own.measured is None or result.measured is None:
            return None
        return result.measured.median / own.measured.median


def to_json(runs: list[Run]) -> str:
    """Runs as a JSON list, with the median beside the repeats."""
    content = [asdict(run) for run in runs]
    for run, source in zip(content, runs, strict=True):
        for entry, result in zip(run["results"], source.results, strict=True):
            if result.measured is not None:
                entry["measured"]["median"] = result.measured.median
    return json.dumps(content, indent=1) + "\n"


def from_json(text: str) -> list[Run]:
    """The runs that `to_json` wrote."""
    return [_run(content) for content in json.loads(text)]


def _run(content: dict[str, Any]) -> Run:
    results = tuple(_result(entry) for entry in content.pop("results"))
    verdicts = tuple(_verdict(entry) for entry in content.pop("verdicts"))
    return Run(**content, results=results, verdicts=verdicts)


def _result(entry: dict[str, Any]) -> Result:
    measured = entry.pop("measured")
    if measured is not None:
        measured = Measurement(tuple(measured["seconds"]), measured["extra_mb"])
    return Result(**{**entry, "size": Size(*entry["size"])}, measured=measured)


def _verdict(entry: dict[str, Any]) -> Verdict:
    goal = entry.pop("goal")
    return Verdict(Goal(**{**goal, "size": Size(*goal["size"])}), **{**entry, "missing": tuple(entry["missing"])})
