"""The table that shells complete by is that of the commands, and bash, zsh and fish complete with it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.packaging import completion_table
from tests.packaging.terminal import RCS, Terminal

from ldreg.cli import COMMANDS, main
from ldreg.completion import script, table


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


needs_bash, needs_zsh, needs_fish = needs("bash"), needs("zsh"), needs("fish")


def test_table_is_that_of_the_commands() -> None:
    assert completion_table.PATH.read_text() == completion_table.text(), "make completion writes it anew"


def completed(line: str, tmp_path: Path, *, before: str = "") -> list[str]:
    """What bash offers for the last word of a line, without files; `before` is what the shell was told before."""
    (tmp_path / "ldreg.sh").write_text(script("bash"))
    words = [part for word in line.split(" ") for part in word.replace("=", " = ").split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    call = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ldreg"
    code = f"source ./ldreg.sh; {before} {call}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
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
        ("ldreg completion ", ["bash", "zsh", "fish"]),
        ("ldreg nonsense --", []),
    ],
)
def test_bash_offers(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == expected


@needs_bash
def test_bash_parts_words_as_ever(tmp_path: Path) -> None:
    assert completed("ldreg inspect x.npy --estimator m", tmp_path, before="IFS=,;") == ["mom", "mle"]


@needs_bash
def test_every_option_is_offered(tmp_path: Path) -> None:
    for command, (_, options) in table().items():
        offered = completed(f"ldreg {command} --".replace("  ", " "), tmp_path)
        assert offered == [*options, "--help"], command


# What is typed, with a Tab after each word that is to be completed, and the words that the command then gets.
TYPED = [
    ("insp\tmy\t--est\tml\t", ["inspect", "my embeddings.npy", "--estimator", "mle"]),
    ("--vers\t", ["--version"]),
    ("bench reg\t--device cu\t", ["bench", "regularizer", "--device", "cuda"]),
    ("evaluate kn\tmodel --data.name cifar100\t", ["evaluate", "knn", "model", "--data.name", "cifar100"]),
    ("pretrain --method=by\t--ldreg.be\t", ["pretrain", "--method=byol", "--ldreg.beta"]),
    ("pretrain --recipe digits/simclr_vit_\t", ["pretrain", "--recipe", "digits/simclr_vit_ldreg"]),
    ("pretrain --recipe=digits/mo\t_\t", ["pretrain", "--recipe=digits/moco_ldreg"]),
    ("pretrain --recipe min\t", ["pretrain", "--recipe", "mine.yaml"]),
    ("inspect --labels my\t", ["inspect", "--labels", "my embeddings.npy"]),
    ("inspect --labels=my\t", ["inspect", "--labels=my embeddings.npy"]),
    ("evaluate transfer x --datasets cifar10=folder/ci\t",
     ["evaluate", "transfer", "x", "--datasets", "cifar10=folder/cifar10.tar"]),
    ("evaluate transfer x --datasets=a=b,cifar10=folder/ci\t",
     ["evaluate", "transfer", "x", "--datasets=a=b,cifar10=folder/cifar10.tar"]),
    ("nonsense min\t", ["nonsense", "mine.yaml"]),
]  # fmt: skip


def advised(shell: str) -> str:
    """The line that the help has for the shell's file of settings."""
    (line,) = (line for line in COMMANDS["completion"].examples if f"ldreg completion {shell}" in line)
    return line


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in RCS])
def test_tab_completes_in_a_terminal(shell: str, tmp_path: Path) -> None:
    for name in ("my embeddings.npy", "mine.yaml", "inspection.txt", "folder/cifar10.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with Terminal(shell, advised(shell), tmp_path) as terminal:
        for keys, words in TYPED:
            assert terminal.said(f"ldreg {keys}") == "".join(f"<{word}>" for word in words)


ZSHRC = """autoload -Uz compinit && compinit
_another() { compadd another-word }
compdef _another another
another() { ldreg another "$@" }
"""


@needs_zsh
def test_zsh_keeps_what_was_set_up_before(tmp_path: Path) -> None:
    with Terminal("zsh", ZSHRC + advised("zsh"), tmp_path) as terminal:
        assert terminal.said("another ano\t") == "<another><another-word>"
        assert terminal.said("ldreg insp\t") == "<inspect>"


@needs_zsh
def test_zsh_offers_every_option(tmp_path: Path) -> None:
    with Terminal("zsh", advised("zsh"), tmp_path) as terminal:
        for command, (_, options) in table().items():
            offered = re.findall(r"--[\w.-]+", terminal.shown(f"ldreg {command} --\t"))
            assert set(offered) == {*options, "--help"}, command


@needs_fish
def test_fish_offers_every_word_and_option_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "ldreg.fish").write_text(script("fish"))
    (tmp_path / "inspection.txt").touch()
    known = table()
    asked = [*(f"ldreg {command} --" for command in known), *(f"ldreg {name} " for name in known if known[name][0])]
    code = "source ldreg.fish; for line in $argv; complete -C $line; echo; end"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code, *(line.replace("  ", " ") for line in asked)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    expected = [[*options, "--help"] for _, options in known.values()] + [words for words, _ in known.values() if words]
    assert [sorted(part.split()) for part in done.stdout.split("\n\n")[:-1]] == [sorted(part) for part in expected]


def test_command_prints_the_script_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.endswith("\ncompdef _ldreg ldreg\n")
    code = "import sys; from ldreg.cli import main; main(['completion', 'bash']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
