"""Processes that tests start: what they say, and that none outlives its test."""

import subprocess

PATIENCE = 600.0  # seconds that a process may take to end, or to show what is waited for, on a machine with other work


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and what was said on stderr; a process that does not end in time is killed, and its test fails."""
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process.returncode, said
