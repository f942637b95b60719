"""Stand-ins for SLURM's `sbatch` and `srun`: the processes are started for real, all on this machine.

`sbatch job.sh` takes nodes and tasks per node from the script's #SBATCH lines and runs it; within it, `srun COMMAND`
starts a process for each task, with the variables by which SLURM tells a process who it is.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

JOB = "4711"


def sbatch(script: str) -> int:
    """Run a batch script in the place of a queue; its output goes to where SLURM would write it."""
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", Path(script).read_text(), re.MULTILINE))
    nodes, tasks = int(asked.get("nodes", 1)), int(asked.get("ntasks-per-node", 1))
    variables = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NAME": asked.get("job-name", Path(script).name),
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(nodes * tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NODELIST": "localhost",
        "PATH": os.pathsep.join([os.environ["PATH_OF_JOBS"], os.environ["PATH"]]),
    }
    print(f"Submitted batch job {JOB}", flush=True)
    with Path(f"slurm-{JOB}.out").open("w") as out:
        done = subprocess.run(
            ["bash", script], env={**os.environ, **variables}, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        print(Path(f"slurm-{JOB}.out").read_text())
    return done.returncode


def srun(words: list[str]) -> int:
    """Start a process for each task of the job, and wait for them."""
    tasks, each = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_NTASKS_PER_NODE"])
    started = [
        subprocess.Popen(
            words,
            env={
                **os.environ,
                "SLURM_PROCID": str(task),
                "SLURM_LOCALID": str(task % each),
                "SLURM_NODEID": str(task // each),
            },
        )
        for task in range(tasks)
    ]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(sbatch(sys.argv[2]) if sys.argv[1] == "sbatch" else srun(sys.argv[2:]))
