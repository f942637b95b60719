"""Keep what was measured, whatever happens later: each benchmark is written as it ends, all numbers at the end."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ldreg.bench.record import Run, to_json
from ldreg.bench.results import RESULTS, path_of, read_folder, write, write_folder


class Keeper:
    """The runs so far and their files.

    Args:
        json: the file for all numbers; None: none is written.
        folder: of results; None: none is written.
        replaced: names of those records in the folder that the coming runs will replace.
        warn: is told in one line about each file of the folder that cannot be read, now or later.
    """

    def __init__(
        self, json: str | None, folder: Path | None, *, replaced: Sequence[str], warn: Callable[[str], None]
    ) -> None:
        self.runs: list[Run] = []
        self.written: dict[Path, None] = {}
        self.problems: dict[str, Exception] = {}  # by their words: one folder that is full is one problem
        self._json, self._folder, self._warn = json, folder, warn
        self._replaced, self._warned, self._waiting = set(replaced), set[Path](), list[Run]()
        self._look()

    def take(self, run: Run) -> None:
        """Keep a run, and write it into the folder at once: a long run may be interrupted."""
        self.runs.append(run)
        if run.measured:  # else the last run that has something to show stays
            self._waiting.append(run)
        self._write_waiting()

    def finish(self) -> None:
        """Write what an interruption has left unwritten, and all numbers."""
        self._write_waiting()
        if self._json is not None and self.runs:
            try:
                write(Path(self._json), to_json(self.runs))
                self.written[Path(self._json)] = None
            except OSError as error:
                self.problems[str(error)] = error

    def settle(self, stopped: KeyboardInterrupt | None) -> None:
        """Raise what came in between, now that the runs are shown; where it is several things, warn of the others."""
        problems: list[BaseException] = [*([] if stopped is None else [stopped]), *self.problems.values()]
        if empty := [run.benchmark for run in self.runs if not run.measured]:
            nothing = ValueError(f"nothing was measured of {', '.join(empty)}; the reasons are given above")
            if problems or any(run.measured for run in self.runs):
                self._warn(str(nothing))
            else:
                problems.append(nothing)
        for problem in problems[1:]:
            self._warn(str(problem))
        if problems:
            raise problems[0]

    def _write_waiting(self) -> None:
        while self._waiting:
            if self._folder is not None:
                try:
                    self.written.update(dict.fromkeys(write_folder(self._folder, self._waiting[0])))
                except Exception as error:  # raised by whoever shows the runs, once they are shown
                    self.problems[str(error)] = error
                self._look()
            del self._waiting[0]

    def _look(self) -> None:
        if self._folder is None:
            return
        for path, reason in read_folder(self._folder).unreadable.items():
            if path not in self._warned:
                fate = "will be replaced" if path.stem in self._replaced else f"is left out of {RESULTS}"
                self._warn(f"{path} cannot be read and {fate}: {reason}")
            self._warned.add(path)


def replaced_by(benchmarks: Sequence[str], device: str) -> list[str]:
    """The names of the records that runs of these benchmarks on this device replace."""
    return [path_of(Path(), name, device).stem for name in benchmarks]
