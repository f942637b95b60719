import io
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from ldreg import terminal
from ldreg.cli import COMMANDS, main
from ldreg.options import Command, options_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with embeddings (40, 4) and labels."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(40, 4)))
    np.save("labels.npy", np.arange(40) % 3)
    return tmp_path


def inspected(*words: str) -> dict[str, Any]:
    """The numbers of `ldreg inspect` with these words."""
    assert main(["inspect", *words, "--json", "r.json"]) == 0
    content: dict[str, Any] = json.loads(Path("r.json").read_text())
    return content


def error_of(capsys: Capture, *words: str) -> str:
    """What the command says on stderr, in one line, when it ends with status 2."""
    assert main([*words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def command(name: str, run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, name, Command(run, "Try."))


def test_sets_that_are_compared_have_names_that_differ(folder: Path, capsys: Capture) -> None:
    Path("before").mkdir()
    x = np.random.default_rng(1).normal(size=(30, 3))
    np.save("before/x.npy", x)
    np.savez("two.npz", a=x, b=x[:, :2])
    for words, names in (
        ("two.npz --key a --compare before/x.npy", ["two.npz", "x.npy"]),
        ("x.npy --compare before/x.npy", ["x.npy", "before/x.npy"]),
        ("two.npz --key b --compare two.npz --compare-key a", ["two.npz, b", "two.npz, a"]),
        ("before/x.npy --compare before/x.npy", ["x.npy", "x.npy again"]),
    ):
        content = inspected(*words.split(), "--k", "8")
        assert [content["title"], content["comparison"]["title"]] == names
        assert len(content["comparison"]["lid"]) == 30
        assert f"compared with {names[1]}, 30 points" in capsys.readouterr().out


def test_two_sets_are_compared_class_by_class(folder: Path, capsys: Capture) -> None:
    x = np.random.default_rng(1).normal(size=(200, 8))
    other = x.copy()
    other[::2, 2:] = 0
    np.savez("new.npz", x=other, y=np.arange(200) % 2)
    np.savez("old.npz", x=x, y=np.arange(200) % 2)
    words = "new.npz --key x --label-key y --compare old.npz --compare-key x --compare-labels old.npz --k 8"
    content = inspected(*words.split(), "--html", "r.html")
    lid = {row["label"]: row["mean"]["value"] for row in content["comparison"]["classes"]}
    assert content["findings"][0]["kind"] == "collapsed_beside"
    assert content["findings"][0]["labels"] == [["0", 100]]
    shown = capsys.readouterr().out
    assert re.search(rf"^ 0 .*\n   old.npz +{lid['0']:.2f} +100 ", shown, re.MULTILINE)
    page = (folder / "r.html").read_text()
    assert f'<td class="n">{lid["1"]:.2f}</td><td class="n">100</td>' in page


def write_tables(names: Sequence[str]) -> None:
    """Two tables of the same points, each with the classes a, b, c in the column of its name; labels in other files."""
    x = pd.DataFrame(np.random.default_rng(1).normal(size=(60, 3)), columns=["1st", "2nd", "3rd"])
    kinds = pd.DataFrame({"kind": list("abc" * 20)})
    for name in names:
        x.assign(**{name: kinds["kind"]}).to_csv(f"{name}.csv", index=False)
    kinds.to_csv("kinds.txt", index=False, header=False)
    kinds.to_csv("kinds.csv", index_label="id")


@pytest.mark.parametrize(
    "words",
    [
        "--compare old.csv --compare-label-key old",
        "--compare old.csv --compare-labels old.csv --compare-label-key old",
        "--compare new.csv --compare-labels kinds.csv --compare-label-key kind",
        "--compare new.csv --compare-labels kinds.txt",
        "--compare new.csv --compare-labels new.csv",
    ],
)
def test_labels_of_the_second_set_have_a_name_of_their_own(folder: Path, words: str) -> None:
    write_tables(["new", "old"])
    content = inspected("new.csv", "--label-key", "new", *words.split(), "--k", "8")
    assert content["comparison"]["dimensions"] == 3
    assert [row["label"] for row in content["comparison"]["classes"]] == ["a", "b", "c"]
    assert content["classes"] == content["comparison"]["classes"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--compare-label-key old", "--compare-label-key: "),
        ("--compare new.csv --compare-labels kinds.csv", "kinds.csv: holds no column 'new'"),
        ("--compare new.csv --compare-labels kinds.txt --compare-label-key a", "--compare-label-key 'a'"),
    ],
)
def test_wrong_names_of_the_second_labels_are_one_line(folder: Path, capsys: Capture, words: str, named: str) -> None:
    write_tables(["new"])
    assert named in error_of(capsys, "inspect", "new.csv", "--label-key", "new", *words.split(), "--k", "8")


def test_labels_beside_the_embeddings_are_pointed_at(folder: Path, capsys: Capture) -> None:
    x = np.random.default_rng(1).normal(size=(30, 3))
    ids, kinds = np.arange(30), np.arange(30) % 2
    files = [f"{i}.jpg" for i in [*range(29), 0]]
    np.savez("both.npz", x=x, weights=np.ones(30), few=ids[1:], ids=ids, files=files, kind=kinds, words=["a b"] * 30)
    tensors = {"x": torch.from_numpy(x), "ids": torch.from_numpy(ids)}
    torch.save(tensors | {"my labels": torch.arange(30) % 2, "good": torch.ones(30) > 0}, "both.pt")
    save_file(tensors | {"y": torch.arange(30) % 2, "w": torch.ones(30)}, "both.safetensors")
    told = "{} holds what may be labels: {} measures LID per class\n"
    named = "both.npz: points are named by 'files'\n"
    for words, options in (
        ("both.npz", "--label-key kind or --label-key words"),
        ("both.pt", "--label-key 'my labels'"),
        ("both.safetensors", "--label-key y"),
        ("both.npz --label-key kind", None),
        ("both.npz --labels both.pt --label-key 'my labels'", None),
        ("x.npy", None),
    ):
        assert main(["inspect", *shlex.split(words), "--k", "8"]) == 0
        err = capsys.readouterr().err
        assert err.removeprefix(named) == ("" if options is None else told.format(words, options))
        assert err.startswith(named) == ("both.npz" in words)


def test_labels_beside_a_column_of_lists_are_pointed_at(folder: Path, capsys: Capture) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(1).normal(size=(30, 3))
    beside = {"id": np.arange(30), "weight": np.ones(30), "user": np.arange(30) % 7, "kind": ["a", "b"] * 15}
    texts = pa.array([f"text {i}" for i in range(30)])
    beside |= {"text": texts, "coded": texts.dictionary_encode(), "long": texts.cast(pa.large_string())}
    pq.write_table(pa.table({"x": list(x), **beside}), "lists.parquet")
    pq.write_table(pa.table({"a": x[:, 0], "b": np.arange(30) % 7}), "wide.parquet")
    assert main(["inspect", "lists.parquet", "--k", "8"]) == 0
    assert "may be labels: --label-key kind or --label-key user measures" in capsys.readouterr().err
    for words, named in (("lists.parquet --label-key kind", "'text'"), ("wide.parquet", "")):
        assert main(["inspect", *words.split(), "--k", "8"]) == 0
        err = capsys.readouterr().err
        assert (err.count("\n"), named in err) == (int(named != ""), True)


def test_columns_of_two_tables_are_named_together(folder: Path, capsys: Capture) -> None:
    features = pd.DataFrame(np.random.default_rng(2).normal(size=(40, 3)), columns=["f0", "f1", "f2"])
    features.assign(image_id=np.arange(40), area=np.arange(40)[::-1]).to_csv("new.csv", index=False)
    features.assign(key=np.arange(40), target=np.arange(40) % 2).to_csv("old.csv", index=False)
    words = ["new.csv", "--k", "8", "--compare"]
    said = error_of(capsys, "inspect", *words, "old.csv", "--exclude", "image_id", "--include", "area")
    assert said.startswith("ldreg inspect: error: old.csv: ")
    assert "--exclude 'key','target' leaves them out, --compare-label-key 'target'" in said
    unknown = ["--exclude", "image_id,key,nope", "--include", "area,target"]
    assert "new.csv: holds no column 'nope'" in error_of(capsys, "inspect", *words, "old.csv", *unknown)
    for other, names, included in (("old.csv", "image_id,key", "area,target"), ("x.npy", "image_id", "area")):
        content = inspected(*words, other, "--exclude", names, "--include", included)
        assert content["dimensions"] == content["comparison"]["dimensions"] == 4
    assert main(["inspect", "x.npy", "--k", "8", "--compare", "old.csv", "--exclude", "key,target"]) == 0


def test_shards_are_measured_with_the_words_that_are_asked_for(folder: Path, capsys: Capture) -> None:
    x = np.random.default_rng(3).normal(size=(60, 4))
    Path("parts").mkdir()
    for i, rows in enumerate(np.split(np.arange(60), [7, 50])):
        columns = {"v": list(x[rows]), "y": rows % 2, "text": [f"number {row}" for row in rows]}
        pd.DataFrame(columns).to_parquet(f"parts/{i}.parquet")
    np.save("all.npy", x)
    words = ["--k", "8", "--sample", "20"]
    one = inspected("parts", *words, "--label-key", "y", "--name-key", "text", "--points", "p.csv")
    other = inspected("all.npy", *words)
    assert (one["title"], one["points"], one["measured"]) == ("parts", 60, 20)
    assert one["lid"] == other["lid"]
    assert one["labels"] == [str(row % 2) for row in other["index"]]
    assert one["names"] == [f"number {row}" for row in other["index"]]
    assert pd.read_csv("p.csv")["row"].tolist() == other["index"]
    assert inspected("parts/[01].parquet", "--k", "8")["points"] == 50
    np.save("new.npy", x[20:40] + 1)
    assert inspected("new.npy", "--k", "8", "--reference", "parts")["comparison"]["points"] == 60
    assert not list(Path().glob("*.partial*"))
    capsys.readouterr()
    assert "no column 'z'" in error_of(capsys, "inspect", "parts", "--k", "8", "--label-key", "z")


def test_rows_with_nan_are_left_out_on_request(folder: Path, capsys: Capture) -> None:
    x = np.random.default_rng(4).normal(size=(60, 4))
    x[[3, 50]] = np.nan
    np.save("gaps.npy", x)
    assert "(from 0: 3, 50); --skip-nonfinite" in error_of(capsys, "inspect", "gaps.npy", "--k", "8")
    found = inspected("gaps.npy", "--k", "8", "--skip-nonfinite")
    capsys.readouterr()
    assert (found["points"], found["left_out"]) == (58, 2)
    assert found["index"] == [row for row in range(60) if row not in (3, 50)]
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame.to_csv("gaps.csv", index=False)
    frame.to_parquet("gaps.parquet")
    np.savetxt("gaps.tsv", x, delimiter="\t")
    pd.DataFrame({"v": list(x)}).to_parquet("lists.parquet")
    for name in ("gaps.csv", "gaps.tsv", "gaps.parquet", "lists.parquet"):
        assert error_of(capsys, "inspect", name, "--k", "8").startswith(f"ldreg inspect: error: {name}: ")
        assert inspected(name, "--k", "8", "--skip-nonfinite")["lid"] == found["lid"], name
        capsys.readouterr()


def write_bad() -> None:
    Path("empty").mkdir()
    np.save("nan.npy", np.full((40, 4), np.nan))
    np.save("few.npy", np.ones((30, 2)))
    np.save("many.npy", np.random.default_rng(0).normal(size=(500, 2)))
    np.savez("two.npz", a=np.zeros((40, 3)), b=np.ones((40, 3)))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (".", "expected a 2-d array (N, D), got shape (40,)"),  # labels.npy, the first of the shards there
        ("empty", "empty: expected shards (.parquet, .arrow, .feather, .npy), got none"),
        ("x.npy --k 5 --compare empty", "empty: expected shards"),
        ("x.npy --k 5 --compare two.npz", "--compare-key"),
        ("x.npy --k 5 --labels labels.csv --compare-labels labels.csv", "--compare-labels"),
        ("x.npy --k 5 --compare x.npy --compare-labels labels.csv", "--compare-labels"),
        ("x.npy --k 5 --compare-key b", "--compare-key: "),
        ("many.npy --k 600", "got 500; try --k 64"),
        ("nan.npy --k 5", "nan.npy: expected finite numbers, got NaN"),
        ("x.npy", "x.npy: expected more points than k, which is 64, got 40; try --k 16"),
        ("x.npy --k 35 --compare few.npy", "few.npy: expected more points than k, which is 35, got 30"),
        ("x.npy --k 5 --seed 99999999999999999999", "seed: "),
        ("x.npy --k five", "--k: expected int, got five"),
        ("x.npy --k=", "--k: expected int, got ''"),
        ("x.npy --k 5 --sample 2.5", "--sample: expected int, got 2.5"),
        ("x.npy --k 5 --label-key b", "x.npy"),
        ("x.npy --k 5 --json", "--json: expected a value"),
        ("x.npy y.npy", "'y.npy'; a second file is for --compare"),
        ("x.npy -k 5", "-k; did you mean '--k'?"),
        ("x.npy --k 5 --html .", "it is a directory"),
        ("x.npy --k 5 --json x.npy", "it is an input"),
        ("x.npy --k 5 --json r --html ./r", "another output has the same name"),
    ],
)
def test_bad_input_is_one_line_and_status_2(folder: Path, capsys: Capture, arguments: str, named: str) -> None:
    write_bad()
    said = error_of(capsys, "inspect", *arguments.split())
    assert said.startswith("ldreg inspect: error: ")
    assert named in said


@pytest.mark.parametrize("rank", ["1st", "7"])
def test_a_wrong_place_among_processes_is_named(
    rank: str, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    said = error_of(capsys, "inspect", "x.npy", "--k", "5")
    assert said.startswith("ldreg inspect: error: RANK: ")
    assert f"got '{rank}'" in said


def test_unwritable_output_is_found_before_the_work(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("ldreg.inspection.measure.inspect", never)
    assert main(["inspect", "x.npy", "--html", "absent/r.html"]) == 2


def test_a_page_replaces_no_file_of_others(folder: Path, capsys: Capture) -> None:
    notes, page, empty = folder / "notes.md", folder / "r.html", folder / "empty.html"
    notes.write_text("mine")
    empty.touch()
    assert "'notes.md'" in error_of(capsys, "inspect", "x.npy", "--k", "5", "--html", "notes.md")
    assert notes.read_text() == "mine"
    assert main(["inspect", "x.npy", "--k", "5", "--html", "r.html"]) == 0
    first = page.read_text()
    for path in (page, empty):
        assert main(["inspect", "x.npy", "--k", "6", "--html", path.name]) == 0
        assert path.read_text().startswith("<!DOCTYPE html>")
        assert path.read_text() != first


@pytest.mark.parametrize("kind", [ValueError, OSError, KeyboardInterrupt])
def test_what_a_file_put_into_an_error_neither_floods_nor_commands_a_terminal(
    kind: type[BaseException], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> None:
        """Read."""
        raise kind("x.npy: \x1b]0;owned\x07 \u202e" + "name " * 1_000_000 + "is\nno column")

    command("read", read, monkeypatch)
    assert main(["read"]) == (130 if kind is KeyboardInterrupt else 2)
    err = capsys.readouterr().err
    assert err.startswith("ldreg read: ")
    assert r"x.npy: \x1b]0;owned\x07 \u202ename name" in err
    assert err.endswith("name is no column\n")
    assert err[:-1].isprintable()
    assert 1000 < len(err) < 1050


def test_debug_shows_the_traceback(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDREG_DEBUG", "1")
    assert main(["inspect", "absent.npy"]) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback")
    assert last.startswith("ldreg inspect: error: ")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "ldreg try: interrupted\n"),
        (RuntimeError("CUDA out of memory.\nTried to allocate 3 GiB"), 2, "ldreg try: error: out of memory; "),
        (ArithmeticError("the loss is NaN"), 1, "ldreg try: error: the loss is NaN\n"),
    ],
)
def test_what_ends_a_command_has_a_status(
    error: BaseException, status: int, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        """Try."""
        raise error

    command("try", run, monkeypatch)
    assert main(["try"]) == status
    assert capsys.readouterr().err.startswith(said)


def test_signature_makes_the_options(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, object]] = []

    def run(what: str, *, some_number: int = 3, on: bool = False, share: float | None = None) -> None:
        """Try something.

        Args:
            what: to try
            some_number: of times, 100 % sure
            on: whether
            share: of the whole
        """
        seen.append({"what": what, "some_number": some_number, "on": on, "share": share})

    command("try", run, monkeypatch)
    assert main(["try", "null", "--some-number", "5", "--on", "true", "--share", "0.5"]) == 0
    assert seen == [{"what": "null", "some_number": 5, "on": True, "share": 0.5}]
    assert main(["try", "--help"]) == 0
    assert "of times, 100 % sure (default: 3)" in capsys.readouterr().out


@pytest.mark.parametrize("asked", ["--help", "-h"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_is_no_value_of_another(name: str, asked: str, capsys: Capture, folder: Path) -> None:
    options = [*options_of(COMMANDS[name].function), *COMMANDS[name].setting_options(None)]
    for option in [one for one in options if not one.positional and not one.is_switch][:1]:
        assert main([*name.split(), "x.npy", option.flag, asked]) == 2
        assert capsys.readouterr().err.endswith(": expected a value, got none\n")
    assert [path.name for path in folder.iterdir() if path.name.startswith("-")] == []


@pytest.mark.parametrize(("asked", "width"), [(None, 80), ("60", 60), ("90", 90), ("300", 100)])
def test_piped_text_is_as_wide_as_columns_says(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str | None, width: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if asked is not None:
        monkeypatch.setenv("COLUMNS", asked)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(100, 4)))
    assert main(["inspect", str(tmp_path / "x.npy"), "--k", "16"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) == width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("screen", "patience", "shown"), [(Terminal, 0.0, True), (Terminal, 60.0, False), (io.StringIO, 0.0, False)]
)
def test_progress_bar_appears_on_a_terminal_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, screen: type[io.StringIO], patience: float, shown: bool
) -> None:
    stderr = screen()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(terminal, "_PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress_bar() as progress:
        progress("measuring", 0.25)
        time.sleep(0.3)
    assert ("measuring" in stderr.getvalue()) == shown
    assert shown or stderr.getvalue() == ""


def test_module_runs_and_a_closed_pipe_is_no_error(folder: Path) -> None:
    # The reader goes away at once; enough is printed for the pipe to notice.
    code = (
        "import sys; from ldreg import cli; from ldreg.options import Command\n"
        "def run() -> None:\n    'Print.'\n    print('line\\n' * 100_000)\n"
        "cli.COMMANDS['print'] = Command(run, 'Try.')\n"
        "sys.exit(cli.main(['print']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    done = subprocess.run([sys.executable, "-m", "ldreg", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ldreg ")


@pytest.mark.parametrize("words", ["completion bash", "inspect x.npy --k 9", "report --help"])
def test_output_may_be_closed(words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 2)))
    shell = f"{shlex.quote(sys.executable)} -m ldreg {words}"
    for closed in (">&-", ">&- 2>&-"):
        done = subprocess.run(
            ["/bin/sh", "-c", f"{shell} {closed}"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
