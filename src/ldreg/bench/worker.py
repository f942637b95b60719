"""One measurement in a process of its own, so that nobody else's memory, caches or threads take part in it.

Run by `runner` as `python -m ldreg.bench.worker JOB`, with JOB in JSON; the last line printed is the outcome.
"""

import json
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any

from ldreg.bench.contest import Outcome, Setting
from ldreg.bench.suite import BENCHMARKS


@dataclass(frozen=True)
class Job:
    """Whom to measure at what."""

    benchmark: str
    contender: str
    setting: Setting


def perform(job: Job) -> Outcome:
    """Have the contender do its work."""
    return BENCHMARKS[job.benchmark].contenders[job.contender].measure(job.setting)


def main(text: str) -> None:
    """Do the job given in JSON and print its outcome."""
    content = json.loads(text)
    kind: Any = BENCHMARKS[content["benchmark"]].size
    setting = Setting(**{**content["setting"], "size": kind(*content["setting"]["size"])})
    outcome = perform(Job(content["benchmark"], content["contender"], setting))
    print(json.dumps({"measured": asdict(outcome.measured), "deviation": outcome.deviation}))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that folders are removed
    main(sys.argv[1])
