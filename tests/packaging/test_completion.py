"""bash, zsh and fish complete the commands, options and values of ldreg, in a terminal of their own."""

import shutil
from pathlib import Path

import pytest
from tests.packaging.terminal import RCS, Terminal

from ldreg.cli import COMMANDS, main

# What is typed, with a Tab after each word that is to be completed, and the words that the command then gets.
TYPED = [
    ("insp\tmy\t--est\tml\t", ["inspect", "my embeddings.npy", "--estimator", "mle"]),
    ("--vers\t", ["--version"]),
    ("bench reg\t--device cu\t", ["bench", "regularizer", "--device", "cuda"]),
    ("evaluate kn\tmodel --data.name cifar100\t", ["evaluate", "knn", "model", "--data.name", "cifar100"]),
    ("evaluate linear runs/first --proto\tf\t", ["evaluate", "linear", "runs/first", "--protocol", "fast"]),
    ("pretrain --method by\t--ldreg.be\t", ["pretrain", "--method", "byol", "--ldreg.beta"]),
    ("pretrain --recipe digits/simclr_vit_l\t", ["pretrain", "--recipe", "digits/simclr_vit_ldreg"]),
    ("pretrain --trainer.comp\tt\t", ["pretrain", "--trainer.compile", "true"]),
    ("inspect --labels my\t", ["inspect", "--labels", "my embeddings.npy"]),
]


def advised(shell: str) -> str:
    """The line that the help has for the shell's file of settings."""
    (line,) = (line for line in COMMANDS["completion"].examples if f"ldreg completion {shell}" in line)
    return line if shell != "zsh" else f"autoload -Uz compinit && compinit\n{line}"


@pytest.mark.parametrize("shell", RCS)
def test_tab_completes_in_a_terminal(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in ("my embeddings.npy", "mine.yaml", "inspection.txt"):
        (tmp_path / name).touch()
    with Terminal(shell, advised(shell), tmp_path) as terminal:
        for keys, words in TYPED:
            assert terminal.said(f"ldreg {keys}") == "".join(f"<{word}>" for word in words), keys


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_kept_and_has_every_option(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path))
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for option in ("--label-key", "--data.path", "--ldreg.beta", "--sigreg.beta", "--moco.queue_size", "--protocol"):
        assert option.removeprefix("--") in script
    (path,) = tmp_path.iterdir()
    path.write_text("kept")
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == "kept"
