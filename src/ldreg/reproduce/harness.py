"""Everything that is missing, trained and measured: in several processes, each run once, from wherever it stands."""

import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from types import FrameType
from typing import Any

from ldreg.io.files import check_writable
from ldreg.record import Record
from ldreg.reproduce.jobs import Job, Trainer
from ldreg.reproduce.lightly_settings import recipe_of
from ldreg.reproduce.workplace import Workplace

# What is told of a run that has ended: it, its record, how many are done of how many.
Told = Callable[[Job, Record, int, int], None]
Measure = Callable[[], Record]

_GOES_ON = "the same command goes on where this one stood"
_ENDING = 10.0  # seconds that processes get to leave


class FailedRunsError(ArithmeticError):
    """Some runs went wrong, though others of the same command went well."""


def carry_out(
    jobs: Sequence[Job], place: Workplace, *, processes: int, told: Told | None = None, seconds: float = math.inf
) -> int:
    """Train and measure every job that is not done; what was begun is continued, nothing is done twice.

    Where a run goes wrong, those after it are tried all the same, once any has gone well: before that, all may.

    Args:
        jobs: the runs, each once.
        place: where they lie.
        processes: how many run at a time.
        told: called after each.
        seconds: after which runs are stopped as by a signal, to go on another time.

    Returns:
        How many jobs are not done, since the time was over.

    Raises:
        ValueError, OSError: as `pretrain` and `measured`; runs that had begun stay where they are.
        FailedRunsError: which runs went wrong, after the others.
        KeyboardInterrupt: by a signal.
    """
    left = [job for job in jobs if place.state(job) != "done"]
    if not left:
        return 0
    until = time.monotonic() + seconds
    processes = min(processes, len(left))
    place = replace(place, at_once=processes)
    _check_places(left, place)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_enter, initargs=(str(place.log),))
    waiting: dict[Future[None], Job] = {}
    ahead, done = iter(left), 0
    wrong: dict[str, Exception] = {}

    def begin() -> None:
        """Hand out as many runs as there are free processes; those that wait in a pool could not be called back."""
        if time.monotonic() < until:
            waiting.update({pool.submit(_one, job, place): job for job in islice(ahead, processes - len(waiting))})

    try:
        with _terminable(), _ended(pool):
            begin()
            while waiting:
                for future in _ended_by(until, waiting):
                    job, error = waiting.pop(future), _error_of(future)
                    if error is not None:
                        if len(left) == len(jobs) and not done:
                            raise error
                        wrong[job.name] = error
                        continue
                    done += 1
                    if told is not None:
                        told(job, Record.from_json(place.record(job)), done, len(left))
                begin()
    except _TimeOverError:
        pass
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (f"interrupted; {_GOES_ON}",)
        raise
    not_done = sum(place.state(job) != "done" for job in left)  # a run may have ended after the time
    if wrong:
        raise FailedRunsError(_told_wrong(wrong, not_done, len(jobs), place.log))
    return not_done


def _check_places(jobs: Sequence[Job], place: Workplace) -> None:
    """Find out before hours of work that its records or its log could not be written. Raises OSError."""
    place.results.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        check_writable(place.record(job))
    with place.log.open("a"):
        pass


def _ended_by(until: float, waiting: Iterable[Future[None]]) -> list[Future[None]]:
    """The runs that end next. Raises _TimeOverError where none does until then."""
    seconds = min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)  # more is an error, and centuries
    finished, _ = wait(waiting, timeout=seconds, return_when=FIRST_COMPLETED)
    if not finished:
        raise _TimeOverError
    return list(finished)


def _error_of(future: Future[None]) -> Exception | None:
    """What went wrong in a run; None where nothing did.

    Raises:
        OSError: what would go wrong in others as well, such as a full disk, or a process that was killed.
    """
    try:
        future.result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"the process of a run was killed, perhaps for lack of memory; --jobs 1 needs less, and {_GOES_ON}"
        ) from error
    except OSError:
        raise
    except Exception as error:
        return error
    return None


def _told_wrong(wrong: Mapping[str, Exception], not_done: int, jobs: int, log: Path) -> str:
    name, error = next(iter(wrong.items()))
    first = f"{name}: {error or type(error).__name__}"
    others = f", and {', '.join(list(wrong)[1:])}" if len(wrong) > 1 else ""
    left = f", {not_done - len(wrong)} are left," if not_done > len(wrong) else ""
    return (
        f"{len(wrong)} of {jobs} runs failed{left} ({first}{others}); {log} has more, and the same command tries again"
    )


def one(job: Job, place: Workplace) -> None:
    """Train a run, or go on with it, then measure it and write its record; the record is the sign that it is done."""
    begun = time.monotonic()
    measure = _TRAINERS[job.arm.by](job, place)
    trained = time.monotonic()
    record = measure()
    replace(record, origin={**record.origin, "at_once": place.at_once}).to_json(place.record(job))
    _say(f"{job.name}: trained in {trained - begun:.0f} s, measured in {time.monotonic() - trained:.0f} s")


def _by_ldreg(job: Job, place: Workplace) -> Measure:
    from ldreg.reproduce.measure import failed, measured
    from ldreg.train.checkpoints import NotFiniteError
    from ldreg.train.run import pretrain

    folder, state = place.folder(job), place.state(job)
    if state in ("missing", "to continue"):
        if state == "missing":
            _clear(folder.path)
        try:
            pretrain(place.settings(job), folder.path, command=job.command, resume=state == "to continue")
        except NotFiniteError as error:
            return partial(failed, job, place, str(error))
    return partial(measured, job, place)


def _by_lightly(job: Job, place: Workplace) -> Measure:
    from ldreg.reproduce.anchor import measure_anchor, train_anchor

    if job.measures:
        raise ValueError(f"{job.name}: expected no further measures of lightly's run, got {', '.join(job.measures)}")
    recipe = recipe_of(place.settings(job))
    trained = train_anchor(recipe, out=place.folder(job).path, device=place.device, k=place.scale.k)
    return partial(
        measure_anchor,
        trained,
        name=job.name,
        device=place.device,
        k=place.scale.k,
        linear=place.scale.linear,
        cache=place.cache,
        command=job.command,
    )


# Who trains a run: they train it, and return what measures it.
_TRAINERS: Mapping[Trainer, Callable[[Job, Workplace], Measure]] = {"ldreg": _by_ldreg, "lightly": _by_lightly}


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _one(job: Job, place: Workplace) -> None:
    _say(job.name)
    try:
        one(job, place)
    except (KeyboardInterrupt, SystemExit):  # a pool would hand this process the next run that waits
        os._exit(143)
    except Exception:
        traceback.print_exc()  # into the log, where the command says one line
        raise


def _clear(path: Path) -> None:
    """Remove what a run left that was killed before its settings were written, and so holds no step."""
    if path.is_dir() and not (path / "config.yaml").exists():
        shutil.rmtree(path)


def _enter(log: str) -> None:
    """Set up a worker: what runs say goes to a file, for several speak at once, and it ends when its parent does."""
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(stream, 2)
    os.close(stream)
    parent = multiprocessing.parent_process()
    assert parent is not None  # it is a worker

    def watch() -> None:
        wait_for_end([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _ended(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Leave no worker behind: after an error or a signal runs are stopped as by a signal, and can go on later."""
    try:
        yield
    except BaseException:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        until = time.monotonic() + _ENDING
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        raise
    pool.shutdown()


class _TimeOverError(Exception):
    """The time that was given is over."""


class _TerminatedError(KeyboardInterrupt):
    status = 143


@contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM end the work as SIGINT does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TerminatedError(f"terminated; {_GOES_ON}")

    before: Any = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
