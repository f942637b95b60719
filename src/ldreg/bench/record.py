"""What a run of a benchmark leaves behind, and its JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ldreg.bench.benchmark import OWN, Goal, Size
from ldreg.bench.measure import Device, Measurement
from ldreg.bench.suite import BENCHMARKS


@dataclass(frozen=True)
class Result:
    """One contender at one size: measured, or skipped for a reason.

    Args:
        contender: its name.
        size: of the benchmark's own type.
        measured: None where it was skipped.
        deviation: how far the result is off; None where that is not known.
        skipped: why it was.
        estimate: seconds it would take, where it was skipped for that.
    """

    contender: str
    size: Any
    measured: Measurement | None = None
    deviation: float | None = None
    skipped: str = ""
    estimate: float | None = None

    @property
    def seconds(self) -> float | None:
        """The time of a call, measured or else estimated."""
        return self.estimate if self.measured is None else self.measured.median

    @property
    def extra_mb(self) -> float | None:
        """Memory beside the input; None where it is not known."""
        return None if self.measured is None else self.measured.extra_mb

    @property
    def host(self) -> float | None:
        """Seconds of the host; None where they are not known."""
        return None if self.measured is None else self.measured.host


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
    """One benchmark, run once on one device: its results, the verdicts on its goals, and where and how it ran."""

    benchmark: str
    device: Device
    command: str
    k: int
    seed: int
    repeats: int
    environment: dict[str, Any]
    results: tuple[Result, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    deviation_of: str = ""
    complete: bool = True  # not where it was interrupted

    @property
    def measured(self) -> bool:
        """Whether anything was measured at all."""
        return any(result.measured is not None for result in self.results)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The sizes in the order they were run."""
        return tuple(dict.fromkeys(result.size for result in self.results))

    def at(self, size: Size) -> dict[str, Result]:
        """Results of one size by contender."""
        return {result.contender: result for result in self.results if result.size == size}

    def ratio(self, result: Result) -> float | None:
        """Time of a contender, be it an estimate, over ours at the same size."""
        own = self.at(result.size).get(OWN)
        if own is None or own.measured is None or result.seconds is None:
            return None
        return result.seconds / own.measured.median


def to_json(runs: list[Run]) -> str:
    """Runs as a JSON list, with the median beside the repeats."""
    content = [asdict(run) for run in runs]
    for run, source in zip(content, runs, strict=True):
        for entry, result in zip(run["results"], source.results, strict=True):
            if result.measured is not None:
                entry["measured"]["median"] = result.measured.median
    return json.dumps(content, indent=1) + "\n"


def from_json(text: str) -> list[Run]:
    """The runs that `to_json` wrote.

    Raises:
        ValueError: it is no JSON, or holds something else.
    """
    try:
        return [_run(content) for content in json.loads(text)]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected runs as ldreg bench writes them, got another shape ({_said(error)})") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _run(content: dict[str, Any]) -> Run:
    if content["benchmark"] not in BENCHMARKS:
        raise ValueError(f"benchmark: expected one of {', '.join(BENCHMARKS)}, got {content['benchmark']!r}")
    kind: Any = BENCHMARKS[content["benchmark"]].size
    results = tuple(_result(entry, kind) for entry in content.pop("results"))
    verdicts = tuple(_verdict(entry, kind) for entry in content.pop("verdicts"))
    return Run(**content, results=results, verdicts=verdicts)


def _result(entry: dict[str, Any], kind: Any) -> Result:
    measured = entry.pop("measured")
    return Result(**{**entry, "size": kind(*entry["size"])}, measured=measured and measurement(measured))


def measurement(content: dict[str, Any]) -> Measurement:
    """A measurement from its fields as JSON has them."""
    fields = {key: value for key, value in content.items() if key != "median"}
    return Measurement(**{**fields, "seconds": tuple(fields["seconds"])})


def _verdict(entry: dict[str, Any], kind: Any) -> Verdict:
    goal = entry.pop("goal")
    return Verdict(Goal(**{**goal, "size": kind(*goal["size"])}), **{**entry, "missing": tuple(entry["missing"])})
