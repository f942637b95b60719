"""Trains and measures the runs that are missing, in several processes, each once, from where it stopped."""

import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.connection import wait as wait_for_exit
from pathlib import Path
from types import FrameType
from typing import Any

from ldreg.extras import require
from ldreg.io.files import check_writable
from ldreg.record import Record
from ldreg.reproduce.jobs import GENERATED, Job, Workspace
from ldreg.reproduce.studies import DETECTION, TRANSFER
from ldreg.text import counted, duration, number

_CONTINUES = "the same command goes on where this one stood"
_GRACE = 10.0  # seconds that processes get to end


class FailedRunsError(ArithmeticError):
    """Some runs failed though others of the same command did not."""


def check_data(jobs: Sequence[Job], workspace: Workspace) -> None:
    """Check before the work that all images are there.

    Raises:
        ValueError: which are missing, and the option for their path.
    """
    from ldreg.data import DataConfig, load_images
    from ldreg.train.module import steps_per_epoch
    from ldreg.train.run import held_out_images, training_images

    left = [job for job in jobs if workspace.state(job) != "done"]
    if any(DETECTION in job.measures for job in left):
        require("detection")
        if workspace.generated:
            _generate(Path(workspace.coco))
    by_images: dict[tuple[object, ...], list[Job]] = {}
    for job in left:
        data = job.settings.data
        by_images.setdefault((data.name, data.limit, data.validation), []).append(job)
    for alike in by_images.values():
        settings = workspace.settings(alike[0])
        images, aside = training_images(settings), held_out_images(settings)
        for job in alike:
            try:
                steps_per_epoch(job.settings, len(images))
                if aside is not None and len(aside) <= workspace.scale.k:
                    expected = f"expected more than the k = {workspace.scale.k} neighbors of LID"
                    raise ValueError(f"data: {expected} to be held out, got {len(aside)} images")
            except ValueError as error:
                raise ValueError(f"{job.name}: {error}") from error
    transferred = [job for job in left if TRANSFER in job.measures]
    for name in workspace.scale.datasets if transferred else ():
        if name != transferred[0].settings.data.name:
            try:
                load_images(DataConfig(name=name, path=workspace.datasets.get(name)), "train")
            except ValueError as error:
                raise ValueError(f"--datasets: {name}: {error}") from error


def _generate(root: Path) -> None:
    """Write the images that stand for COCO, all or none."""
    from ldreg.evaluate.detection.coco import write_generated

    if root.is_dir():
        return
    fresh = root.with_name(f"{root.name}.writing")
    shutil.rmtree(fresh, ignore_errors=True)
    write_generated(fresh, **GENERATED)
    fresh.rename(root)


def train_missing(
    jobs: Sequence[Job], workspace: Workspace, *, processes: int, seconds: float = math.inf
) -> tuple[int, FailedRunsError | None]:
    """Train and measure every job that is not done, several processes at a time; interrupted runs continue.

    After `seconds` runs are stopped as by a signal, to continue another time. Once any run has been done, a run that
    fails does not keep the others from being tried.

    Returns:
        How many jobs are not done, and the error that names those that failed.

    Raises:
        ValueError, OSError: as `pretrain` and `measured`; runs that had begun can continue.
        KeyboardInterrupt: by a signal.
    """
    left = [job for job in jobs if workspace.state(job) != "done"]
    if jobs:
        before = len(jobs) - len(left)
        runs = counted(len(left), "run")
        _say(f"{runs} to do, {before} done before; {processes} at a time, into {workspace.out}")
    if not left:
        return 0, None
    _say(f"messages of runs under way are in {workspace.log}")
    started = time.monotonic()
    processes = min(processes, len(left))
    workspace = replace(workspace, at_once=processes)
    _check_writable(left, workspace)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_set_up, initargs=(str(workspace.log),))
    running: dict[Future[None], Job] = {}
    ahead, done = iter(left), 0
    failures: dict[str, Exception] = {}

    def seconds_left() -> float:
        return min(max(0.0, started + seconds - time.monotonic()), threading.TIMEOUT_MAX)  # wait() refuses more

    def submit() -> None:
        """Submit one run for each free process; a run that waits in the pool could not be called back."""
        if seconds_left():
            running.update({pool.submit(_one, job, workspace): job for job in islice(ahead, processes - len(running))})

    handler: Any = signal.signal(signal.SIGTERM, _terminate)
    try:
        submit()
        while running and (ended := wait(running, timeout=seconds_left(), return_when=FIRST_COMPLETED).done):
            for future in ended:
                job, error = running.pop(future), _error_of(future)
                if error is not None:
                    if len(left) == len(jobs) and not done:
                        raise error
                    failures[job.name] = error
                    continue
                done += 1
                minutes = (time.monotonic() - started) / done * (len(left) - done) / 60
                rest = f"; about {duration(minutes)} left" if len(left) > done else ""
                record = Record.from_json(workspace.record_path(job))
                _say(f"{done}/{len(left)} {job.name}: {_brief(record)}{rest}")
            submit()
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (f"interrupted; {_CONTINUES}",)
        raise
    finally:
        _shut_down(pool, stop=bool(running))
        signal.signal(signal.SIGTERM, handler)
    not_done = sum(workspace.state(job) != "done" for job in left)  # a run may have ended after the time
    if not failures:
        return not_done, None
    (name, error), *others = failures.items()
    first = f"{name}: {error or type(error).__name__}"
    first += f", and {', '.join(other for other, _ in others)}" if others else ""
    unfinished = f", {not_done - len(failures)} are left," if not_done > len(failures) else ""
    return not_done, FailedRunsError(
        f"{len(failures)} of {len(jobs)} runs failed{unfinished} ({first}); {workspace.log} has more, "
        "and the same command tries again"
    )


def _terminate(number: int, frame: FrameType | None) -> None:
    from ldreg.train.engine import InterruptedRunError

    raise InterruptedRunError(f"terminated; {_CONTINUES}", 128 + number)


def _shut_down(pool: ProcessPoolExecutor, *, stop: bool) -> None:
    """Leave no worker behind; runs that are stopped, as by a signal, can continue later."""
    workers = list((pool._processes or {}).values()) if stop else []
    pool.shutdown(wait=not stop, cancel_futures=stop)
    for worker in workers:
        worker.terminate()
    until = time.monotonic() + _GRACE
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
        if worker.is_alive():
            worker.kill()


def _brief(record: Record) -> str:
    if record.origin.get("failed"):
        return f"collapsed ({record.origin['failed']})"
    shown = {"lid": "LID", "effective_rank": "effective rank", "linear": "linear"}
    return ", ".join(f"{title} {number(record.results[key])}" for key, title in shown.items() if key in record.results)


def _check_writable(jobs: Sequence[Job], workspace: Workspace) -> None:
    """Check before hours of work that records and the log can be written. Raises OSError."""
    workspace.results.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        check_writable(workspace.record_path(job))
    with workspace.log.open("a"):
        pass


def _error_of(future: Future[None]) -> Exception | None:
    """The error of a run, if it failed.

    Raises:
        OSError: an error that other runs would have too, such as a full disk, or a process that was killed.
    """
    try:
        future.result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"the process of a run was killed, perhaps for lack of memory; --jobs 1 needs less, and {_CONTINUES}"
        ) from error
    except OSError:
        raise
    except Exception as error:
        return error
    return None


def one(job: Job, workspace: Workspace) -> None:
    """Train a run or continue it, measure it and write its record, which marks it as done."""
    begun = time.monotonic()
    measure = (_train_by_lightly if job.arm.by == "lightly" else _train)(job, workspace)
    trained = time.monotonic()
    record = measure()
    replace(record, origin={**record.origin, "at_once": workspace.at_once}).to_json(workspace.record_path(job))
    _log(f"{job.name}: trained in {trained - begun:.0f} s, measured in {time.monotonic() - trained:.0f} s")


def _train(job: Job, workspace: Workspace) -> Callable[[], Record]:
    """Train a run; returns what measures it."""
    from ldreg.reproduce.measure import measured, unmeasured
    from ldreg.train.checkpoints import NotFiniteError
    from ldreg.train.run import pretrain

    folder, state = workspace.folder(job), workspace.state(job)
    if state in ("missing", "to continue"):
        if state == "missing" and folder.path.is_dir() and not folder.config.exists():
            shutil.rmtree(folder.path)  # killed before its settings were written, so without a step
        try:
            pretrain(workspace.settings(job), folder.path, command=job.command, resume=state == "to continue")
        except NotFiniteError as error:
            return partial(unmeasured, job, workspace, failed=str(error))
    return partial(measured, job, workspace)


def _train_by_lightly(job: Job, workspace: Workspace) -> Callable[[], Record]:
    from ldreg.reproduce.lightly import train
    from ldreg.reproduce.measure import with_basics

    if job.measures:
        raise ValueError(f"{job.name}: expected no further measures of lightly's run, got {', '.join(job.measures)}")
    source, record, times = train(job, workspace)
    return partial(with_basics, record, source, workspace, times)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _log(text: str) -> None:
    _say(f"{time.strftime('%H:%M:%S')} {text}")


def _one(job: Job, workspace: Workspace) -> None:
    _log(job.name)
    try:
        one(job, workspace)
    except (KeyboardInterrupt, SystemExit):  # a pool would hand this process the next run
        os._exit(143)
    except Exception:
        traceback.print_exc()  # into the log; the command prints one line
        raise


def _set_up(log: str) -> None:
    """Set up a worker: stderr goes to the log, and the worker ends when its parent does."""
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(stream, 2)
    os.close(stream)
    parent = multiprocessing.parent_process()
    assert parent is not None  # it is a worker

    def watch() -> None:
        wait_for_exit([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
