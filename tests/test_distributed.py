"""How a process of several ends."""

import subprocess
import sys

ENDING = """
import atexit, threading
from ldreg.distributed import leave
atexit.register(print, "saved", end="")
threading.Thread(target=threading.Event().wait).start()  # Python would wait for it
print("done", end=" ")
leave(3)
"""
COMMAND = """
import sys
import torch.distributed as dist
from ldreg import cli
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
sys.argv[1:] = ["inspect", "no such file.npy"]
class Taken:
    def __del__(self): print("taken down")
taken = Taken()
cli.run()
"""


def ended(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_leaving_runs_exit_functions_flushes_and_waits_for_no_thread() -> None:
    process = ended(ENDING)
    assert (process.returncode, process.stdout) == (3, "done saved")


def test_a_command_of_several_processes_leaves_with_its_status(tmp_path: object) -> None:
    process = ended(COMMAND, f"{tmp_path}/store")
    assert process.returncode == 2, process.stderr
    assert "no such file.npy" in process.stderr
    assert "taken down" not in process.stdout
