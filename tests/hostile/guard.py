"""Runs `ldreg` on hostile files, each time in a forked process with bounds, and reports status, time and memory.

Input is one JSON list of words per line. Output is one JSON object per line: the exit status (negative: the signal that
ended the process), stderr, seconds, and the growth of memory in MiB. The words "read NAME FILE" call one of `readers`
directly, for those that no command calls at once.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

MEMORY = 4 << 30  # bytes of further address space; allocating more fails instead of filling the machine
SECONDS = 60
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.bind")


def main() -> None:
    import torch

    import ldreg.evaluate.command
    import ldreg.evaluate.report
    import ldreg.inspection
    import ldreg.io.embeddings
    import ldreg.io.labels
    import ldreg.train.command  # noqa: F401

    readers()
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(guarded(json.loads(line))), flush=True)


def readers() -> dict[str, Callable[[Path], object]]:
    """Readers of a file by what it is."""
    from typing import Any

    from ldreg.bench import runner
    from ldreg.data.decoding import read_content
    from ldreg.encoders.checkpoints import read_card
    from ldreg.evaluate import classification, classifier, records
    from ldreg.evaluate.detection import coco
    from ldreg.evaluate.detection import run as detection
    from ldreg.monitor.log import read_metrics
    from ldreg.record import Record
    from ldreg.reproduce import tables
    from ldreg.train import run as training
    from ldreg.train.checkpoints import latest
    from ldreg.train.folder import RunFolder

    def finished(path: Path) -> Any:
        unbuilt: Any = SimpleNamespace(folder=RunFolder(path.parent))
        return training.Run.finished_before(unbuilt)

    return {
        "image": lambda path: read_content(str(path)),
        "metrics": read_metrics,
        "facts": records._environment,
        "results": Record.from_json,
        "fit": classification.read_fit,
        "card": lambda path: read_card(path.with_name("encoder.safetensors"), {}),
        "finished run": finished,
        "bench": lambda path: runner.read_run(path, "lid", "cpu"),
        "cost": lambda path: tables.step_cost([path]),
        "annotations": coco.load_annotations,
        "detection": lambda path: detection._finished(path.parent, {}),
        "checkpoint": lambda path: latest(path.parent),
        "classifier": lambda path: classifier._saved(path.parent, {}),
        "detector": lambda path: latest(path.parent),
        "anchor": lambda path: latest(path.parent),
    }


def guarded(words: list[str]) -> dict[str, object]:
    with tempfile.TemporaryFile() as stderr:
        start = time.monotonic()
        process = os.fork()
        if process == 0:
            os.dup2(stderr.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                status = _run(words)
            except BaseException:
                traceback.print_exc()
                status = 98
            os._exit(status)
        _, status, usage = os.wait4(process, 0)
        seconds = time.monotonic() - start
        stderr.seek(0)
        text, _, rest = stderr.read().decode(errors="replace").partition("\ngrown ")
        grown, _, trace = rest.partition("Traceback")
    code = os.waitstatus_to_exitcode(status)
    return {"status": code, "stderr": text + trace, "seconds": seconds, "grown": int(grown or usage.ru_maxrss >> 10)}


def _run(words: list[str]) -> int:
    from ldreg.cli import fail
    from ldreg.cli import main as ldreg

    before = _status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + MEMORY,) * 2)
    signal.alarm(SECONDS)
    sys.addaudithook(_watched)
    try:
        if words[0] != "read":
            return ldreg(words)
        readers()[words[1]](Path(words[2]))
        return 0
    except (ValueError, OSError, MemoryError) as error:
        return fail("ldreg read", error)
    finally:
        sys.stderr.write(f"\ngrown {(_status('VmHWM') - before) >> 20}")
        sys.stderr.flush()


def _watched(event: str, arguments: object) -> None:
    if event.startswith(FORBIDDEN):
        sys.stderr.write(f"RAN {event} {arguments}\n")
        sys.stderr.flush()
        os._exit(99)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()
