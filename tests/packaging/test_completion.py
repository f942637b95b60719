"""The table that shells complete by is that of the commands, and bash completes with it."""

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.packaging import completion_table

from ldreg.cli import main
from ldreg.completion import script, table

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


def test_table_is_that_of_the_commands() -> None:
    assert completion_table.PATH.read_text() == completion_table.text(), "make completion writes it anew"


def completed(line: str, tmp_path: Path, *, shell: str = "bash") -> list[str]:
    """What bash offers for the last word of a line, without files."""
    (tmp_path / "ldreg.sh").write_text(script("bash"))
    words = [part for word in line.split(" ") for part in word.replace("=", " = ").split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    call = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ldreg"
    code = f"source ./ldreg.sh; {call}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run([shell, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ldreg ins", ["inspect"]),
        ("ldreg re", ["reproduce", "report"]),
        ("ldreg --v", ["--version"]),
        ("ldreg inspect x.npy --est", ["--estimator"]),
        ("ldreg inspect x.npy --estimator ", ["mom", "mle", "tle"]),
        ("ldreg inspect x.npy --estimator=ml", ["mle"]),
        ("ldreg inspect x.npy --device c", ["cpu", "cuda"]),
        ("ldreg evaluate knn r.pth --data.name cifar", ["cifar10", "cifar100"]),
        ("ldreg inspect x.npy --estimator mle --conv", ["--convention"]),
        ("ldreg inspect x", []),  # files
        ("ldreg inspect --labels --js", []),  # a value is due
        ("ldreg bench re", ["regularizer"]),
        ("ldreg evaluate d", ["dimension", "detection"]),
        ("ldreg evaluate linear runs/first --proto", ["--protocol"]),
        ("ldreg evaluate linear runs/first --protocol f", ["fast"]),
        ("ldreg pretrain --recipe digits/byol", ["digits/byol", "digits/byol_ldreg"]),
        ("ldreg pretrain --list_recipes --regularizer k", ["koleo"]),
        ("ldreg pretrain --ldreg.be", ["--ldreg.beta"]),
        ("ldreg pretrain --trainer.compile t", ["true"]),
        ("ldreg reproduce figure2", ["figure2a", "figure2b", "figure2cd"]),
        ("ldreg reproduce table1 --scale im", ["imagenet"]),
        ("ldreg report runs/a --data.pa", ["--data.path"]),
        ("ldreg completion ", ["bash", "zsh"]),
        ("ldreg nonsense --", []),
    ],
)
def test_bash_offers(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == expected


@needs_bash
def test_every_option_is_offered(tmp_path: Path) -> None:
    for command, (_, options) in table().items():
        offered = completed(f"ldreg {command} --".replace("  ", " "), tmp_path)
        assert offered == [*options, "--help"], command


@needs_bash
def test_tab_completes_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "ldreg.sh").write_text(script("bash"))
    (tmp_path / "my embeddings.npy").touch()
    (tmp_path / "ldreg").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    (tmp_path / "ldreg").chmod(0o755)
    leader, follower = pty.openpty()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(tmp_path)}
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=follower, stdout=follower, stderr=follower, cwd=tmp_path, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    try:
        os.write(leader, b"source ./ldreg.sh\nldreg insp\tmy\t--est\tml\t\n")
        wanted, said, ends = "<inspect><my embeddings.npy><--estimator><mle>", "", time.monotonic() + 20
        while wanted not in said and time.monotonic() < ends:
            said += os.read(leader, 4096).decode()
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)
    assert wanted in said


def test_command_prints_the_script_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert "bashcompinit" in out
    assert out.endswith("complete -o bashdefault -o default -F _ldreg ldreg\n")
    code = "import sys; from ldreg.cli import main; main(['completion', 'bash']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
