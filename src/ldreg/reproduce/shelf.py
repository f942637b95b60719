"""Records of runs that lie in a folder, and which studies they are enough for."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ldreg.record import Record
from ldreg.reproduce.findings import Gathered, metrics_of, told
from ldreg.reproduce.jobs import DETECTION, TRANSFER, Arm, Job, Options
from ldreg.reproduce.request import given
from ldreg.reproduce.rows import Row, all_methods
from ldreg.reproduce.scales import SCALES, Scale
from ldreg.reproduce.studies import Study
from ldreg.reproduce.workplace import check_named, check_same


@dataclass(frozen=True)
class Part:
    """A study at the length at which it was run, and the records there are."""

    study: Study
    scale: Scale
    rows: Sequence[Row]
    gathered: Gathered

    def records(self, row: Row) -> Sequence[Record]:
        """Those of a row; none where they say nothing that the study shows."""
        found = self.gathered.get(row.arm, ())
        return found if told(self.study, self.scale, found) else ()

    @property
    def effects(self) -> set[tuple[Arm, Arm, str]]:
        """What it compares: an arm with another, by a metric."""
        compared = [(row.arm, self.rows[row.baseline].arm) for row in self.rows if row.baseline is not None]
        return {(*pair, metric) for pair in compared for metric in metrics_of(self.study, self.scale)}


def other_lengths(scale: Scale, names: Iterable[str]) -> list[Scale]:
    """The scale with the other numbers of epochs that names of records have; none where a number was asked for."""
    if scale != SCALES[scale.name]:
        return []
    told = {int(found[1]) for name in names if (found := re.search(r"-epochs(\d+)(?=-|$)", name))}
    return [scale.with_epochs(epochs) for epochs in sorted(told - {0, scale.epochs})]


def gather_records(arms: Iterable[Arm], paths: Mapping[str, Mapping[int, Path]], settings: Options) -> Gathered:
    """The records of these arms, each with the settings that every run was given, in the order of their seeds.

    Raises:
        ValueError: a file that is no record, or of another run than its name says.
        OSError: it cannot be read.
    """
    found: dict[Arm, list[Record]] = {}
    for arm in arms:
        asked = given(arm, settings)
        seeds = sorted(paths.get(asked.slug, {}).items())
        if not seeds:
            continue
        job = Job(asked, seeds[0][0])  # settings are resolved once: those of an arm differ in the seed alone
        for seed, path in seeds:
            record = Record.from_json(path)
            check_named(path, record, seed=seed)
            check_same(path, {**record.settings, "seed": job.seed}, job)
            found.setdefault(arm, []).append(record)
    return found


def parts_of(study: Study, scales: Sequence[Scale], gathered: Gathered) -> list[Part]:
    """The study at the length of which there is most, or at each; none where nothing says more than other studies do.

    A study that is about runs of its own, such as those of a sweep, needs one of them: the methods as they are, which
    it shares with Table 1, show nothing of it.
    """
    shared = {row.arm for length in scales for row in all_methods(length)}

    def extent(scale: Scale) -> tuple[int, int]:
        arms = {row.arm for row in study.rows(scale)}
        own = arms if study.measures & {TRANSFER, DETECTION} else arms - shared
        known = {arm for arm in arms if told(study, scale, gathered.get(arm, ()))}
        return len(known & own if own else known), len(known)

    # The best is the first of equals, which is the scale as it is. Other lengths may stand for the same runs.
    lengths = scales if study.every_length else [max(scales, key=extent)]
    found = {
        tuple(row.arm for row in rows): (scale, rows) for scale in reversed(lengths) if (rows := study.rows(scale))
    }
    parts = [Part(study, scale, rows, gathered) for scale, rows in found.values() if extent(scale)[0]]
    return (
        parts if len(parts) < 2 else [_entitled(part, place) for place, part in enumerate(sorted(parts, key=_epochs))]
    )


def _entitled(part: Part, place: int) -> Part:
    """A part whose heading says the length; its text is that of the first."""
    title = f"{part.study.title}, at {_epochs(part)} epochs"
    text = "The same with longer runs." if place else part.study.text
    return replace(part, study=replace(part.study, title=title, text=text))


def _epochs(part: Part) -> int:
    return int(Job(part.rows[0].arm, 0).settings.schedule.epochs)
