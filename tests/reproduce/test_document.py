"""The results file is what the records say, to the byte, and says what they lack."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import matplotlib
import pytest
from PIL import Image
from tests.reproduce.words import put

from ldreg.cli import main
from ldreg.record import Record
from ldreg.reproduce.document import Document, document
from ldreg.reproduce.jobs import read_records, record_paths
from ldreg.reproduce.studies import SCALES, STUDIES, chosen

ROOT = Path(__file__).parents[2]
DIGITS = SCALES["digits"]
SIMCLR, LDREG = DIGITS.arm("simclr"), DIGITS.arm("simclr_ldreg")


def text_of(folder: Path, what: str = "all") -> str:
    return document(chosen(what), DIGITS, folder, what=what, folder="images/results").text


def section(text: str, title: str) -> str:
    return next(part for part in text.split("\n## ") if part.startswith(title))


def source_of(path: Path) -> str:
    with Image.open(path) as picture:
        return str(picture.info["Source"])


def test_the_results_in_the_docs_are_what_the_records_say(tmp_path: Path) -> None:
    records, committed = ROOT / "results" / "cifar10", ROOT / "docs" / "results.md"
    fresh = tmp_path / "results.md"
    command = ["reproduce", "all", "--scale", "cifar10", "--results", str(records), "--write", str(fresh)]
    assert main(command) == 0
    assert fresh.read_bytes() == committed.read_bytes(), "write docs/results.md again, as its last lines say"
    linked = set(re.findall(r"\]\((images/results/[^)]+)\)", fresh.read_text(encoding="utf-8")))
    assert linked
    for folder in (tmp_path, committed.parent):
        assert {f"images/results/{path.name}" for path in (folder / "images" / "results").iterdir()} == linked
    for link in linked:  # bytes of a picture depend on matplotlib; what it was drawn from does not
        assert source_of(tmp_path / link) == source_of(committed.parent / link)


def test_the_same_records_give_the_same_bytes_wherever_they_lie(tmp_path: Path) -> None:
    results = {SIMCLR: {"lid": 6.0}, LDREG: {"lid": 7.0}, DIGITS.arm("byol"): {"lid": 5.0}}
    for place, arms in (("here", list(results)), ("there", list(results)[::-1])):
        for arm in arms:
            put(tmp_path / place, arm, [results[arm]] * 2)

    def made(place: str) -> Document:
        return document(chosen("all"), DIGITS, tmp_path / place, what="all", folder="images/results")

    one = made("here")
    assert one == made("there")
    assert str(tmp_path) not in one.text
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "savefig.bbox": "tight"}):
        assert made("here") == one
    put(tmp_path / "there", LDREG, [{"lid": 7.1}] * 2)
    picture = "figure2a-lid-over-training.png"
    assert made("there").pictures[picture] != one.pictures[picture], "it tells of which records it is"


def test_the_command_says_what_it_wrote_and_pictures_are_found_whatever_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "records", SIMCLR, [{"lid": 6.0, "linear": 0.9}])
    put(tmp_path / "records", STUDIES["ablation"].rows(DIGITS)[1].arm, [{"lid": 6.0}] * 30)
    target = tmp_path / "meine Übersicht (1).md"
    words = ["reproduce", "--results", str(tmp_path / "records"), "--write", str(target)]
    assert main(["reproduce", "figure2a", *words[1:]]) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "1 study, 1 run, 1 picture in " in told
    assert "30 records" in told
    links = re.findall(r"\]\(([^)\s]+)\)", target.read_text(encoding="utf-8"))
    assert links
    assert all((tmp_path / unquote(link)).is_file() for link in links)


def test_runs_of_one_length_and_settings_can_be_asked_for_and_the_text_says_so(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"lid": 6.0}])
    for recipe in ("simclr", "simclr_ldreg"):
        put(tmp_path, DIGITS.with_epochs(7).arm(recipe), [{"lid": 4.0}])
    put(tmp_path, DIGITS.with_epochs(7).arm("simclr").but(batch_size=64), [{"lid": 5.0}])
    target = tmp_path / "text.md"
    for more, shown in (([], "4.00"), (["--epochs", "40"], "6.00"), (["--epochs", "7", "--batch_size", "64"], "5.00")):
        assert main(["reproduce", "table1", "--results", str(tmp_path), "--write", str(target), *more]) == 0
        text = target.read_text(encoding="utf-8")
        assert f"| {shown} (paper: 18.8) |" in text
        command = " ".join(["`ldreg reproduce table1 --scale digits", *more, "--results FOLDER --write FILE`"])
        assert command in text


def test_tables_have_all_seeds_with_their_spread_and_their_number(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"linear": 0.90, "lid": 6.0}, {"linear": 0.92, "lid": 6.2}, {"linear": 0.94, "lid": 6.4}])
    put(tmp_path, LDREG, [{"linear": 0.90, "lid": 7.0}, {"linear": 0.93, "lid": 7.3}, {"lid": 7.3}])
    part = section(text_of(tmp_path), "Table 1")
    assert "| SimCLR | \\- | 3 | 92.0 ± 2.00 (paper: 64.3) | – (paper: 470.2) | 6.20 ± 0.20 (paper: 18.8) | – |" in part
    assert "| SimCLR | LDReg, β 0.1 | 3 | 91.5 ± 2.12 (of 2 seeds) ≈ (paper: 64.8) |" in part
    assert "7.20 ± 0.17 ✓ (paper: 20.0)" in part
    # Of the two seeds that both have, linear differs by 0 and 1 percent: 12.71 * 0.707 / sqrt(2) = 6.36; LID of all
    # three by 1.0, 1.1 and 0.9: 4.3 * 0.1 / sqrt(3) = 0.25.
    assert "| SimCLR | LDReg, β 0.1 | SimCLR | +0.50 (noise 6.36) ≈ | – | +1.00 (noise 0.25) | – |" in part
    assert "6 runs of 40 epochs." in part
    assert "±: standard deviation over seeds." in part


def test_what_is_missing_is_left_out_and_named(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"linear": 0.9, "lid": 6.0}])
    put(tmp_path, DIGITS.arm("byol_ldreg"), [{"linear": 0.9, "lid": 6.0}])
    (tmp_path / "search.json").write_text("{}")
    put(tmp_path, SIMCLR.but(batch_size=77), [{"lid": 6.0}])
    text = text_of(tmp_path)
    part = section(text, "Table 1")
    assert part.count("\n| SimCLR") == part.count("\n| BYOL") == 1
    assert "Not measured: SimCLR, LDReg, β 0.1; SimCLR-Tuned; SimCLR-Tuned, LDReg, β 0.1; BYOL; SimCLR (ViT);" in part
    assert "Differences" not in part, "there is nothing to compare with"
    assert "## Figure 1" not in text, "it is of no records"
    missing = section(text, "What is missing")
    for title in ("Table 2: transfer", "Table 13", "Table 14", "Table 15", "Figure 5"):
        assert f"- {title}" in missing
        assert f"\n## {title}" not in text
    other = section(text, "Other records")
    assert "\n| simclr-batch\\_size77-epochs40-seed0 | test | 40 | – | – | 6.00 | – |\n" in other
    assert "Files that are no records of runs: search." in other


def test_a_search_is_shown_at_each_length_and_the_longest_counts(tmp_path: Path) -> None:
    usual, longer = (STUDIES["search"].rows(scale) for scale in (DIGITS, DIGITS.with_epochs(80)))
    put(tmp_path, usual[0].arm, [{"linear": 0.9, "lid": 6.0}])
    text = text_of(tmp_path)
    assert section(text, "How beta").startswith("How beta and k were chosen\n"), "there is one length"
    put(tmp_path, longer[1].arm, [{"linear": 0.8, "lid": 7.0}])
    put(tmp_path, longer[2].arm, [{"linear": 0.9, "lid": 6.0}])
    text = text_of(tmp_path)
    assert text.index("chosen, at 40 epochs") < text.index("chosen, at 80 epochs")
    short, long = (section(text, f"How beta and k were chosen, at {epochs} epochs") for epochs in (40, 80))
    assert ("judged by the other tenth" in short, "judged by the other tenth" in long) == (True, False)
    assert "Chosen" not in short
    assert f"Chosen: SimCLR beta = {longer[2].names[1]}" in long
    assert f"Not measured: {len(longer) - 2} of {len(longer)} rows" in long
    assert "How beta" not in section(text, "What is missing")


def test_a_sweep_is_shown_as_soon_as_one_of_its_own_runs_is_there(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"lid": 6.0, "transfer/shapes": 0.5}])
    put(tmp_path, LDREG, [{"lid": 6.0}])
    text = text_of(tmp_path)
    assert "\n## Table 13" not in text
    transfer = section(text, "Table 2")  # for which the short pretraining is enough
    assert "| SimCLR | \\- | short | 1 | – | 50.0 | – |" in transfer
    assert "Not measured: SimCLR, LDReg, short; SimCLR, long; SimCLR, LDReg, long." in transfer
    put(tmp_path, STUDIES["minlid"].rows(DIGITS)[3].arm, [{"lid": 3.0}])
    part = section(text_of(tmp_path), "Table 13")
    assert "| Min LID | 0.1 | 1 | – (paper: 63.1) | – (paper: 15.0) | 3.00 ✓ (paper: 3.8) |" in part
    assert "| Min LID | 0.1 | no regularization | – | – | -3.00 (noise 0.30) |" in part


def test_a_study_is_shown_at_the_length_at_which_it_was_run(tmp_path: Path) -> None:
    short = DIGITS.with_epochs(7)
    put(tmp_path, SIMCLR, [{"lid": 6.0}])
    put(tmp_path, LDREG, [{"lid": 7.0}])
    put(tmp_path, DIGITS.arm("byol"), [{"lid": 7.0}])
    for row in STUDIES["ablation"].rows(short)[:3]:
        put(tmp_path, row.arm, [{"lid": 4.0 + row.x}])
    text = text_of(tmp_path)
    assert "| SimCLR | \\- | 1 | – (paper: 64.3) | – (paper: 470.2) | 6.00 (paper: 18.8) | – |" in text
    assert "| \\- | \\- | \\- | 1 | – | – | 4.00 |" in section(text, "Figure 5")
    assert "no table here shows" not in text
    only = document(chosen("all"), short, tmp_path, what="all", folder="images/results")
    assert all("epochs7" in name for name in only.shown)
    assert len(only.unused) == 3


def test_effects_that_an_earlier_table_has_are_not_told_twice(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"lid": 6.0}])
    put(tmp_path, LDREG, [{"lid": 7.0}])
    assert "Differences" in section(text_of(tmp_path), "Table 1")
    assert "Differences" not in section(text_of(tmp_path), "Figure 2(c, d)")
    assert "Differences" in section(text_of(tmp_path, "figure2cd"), "Figure 2(c, d)")


def test_records_of_other_runs_than_their_names_say_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected records of these studies, got none"):
        text_of(tmp_path)
    put(tmp_path, SIMCLR, [{"lid": 6.0}], settings={"data.path": "elsewhere", "of another time": 1})
    assert text_of(tmp_path)
    put(tmp_path, SIMCLR, [{"lid": 6.0}, {"lid": 6.0}], settings={"batch_size": 99})
    with pytest.raises(ValueError, match=r"simclr-epochs40-seed0\.json: expected batch_size = 256, .* got 99"):
        text_of(tmp_path)
    put(tmp_path, SIMCLR, [{"lid": 6.0}, {"lid": 6.0}])
    (tmp_path / "simclr-epochs40-seed1.json").replace(tmp_path / "simclr-epochs40-seed2.json")
    with pytest.raises(ValueError, match=r"seed2\.json: expected the record of .*seed2, got that of .*seed1 of seed 1"):
        text_of(tmp_path)


def test_a_record_cannot_lack_what_it_is_about(tmp_path: Path) -> None:
    arm = LDREG.but(ldreg__norm="l2")
    put(tmp_path, arm, [{"lid": 6.0}])
    (path,) = tmp_path.iterdir()
    made = Record.from_json(path)
    assert text_of(tmp_path, "norms")
    for key in ("schedule.epochs", "method", "ldreg.norm"):
        told = {name: value for name, value in made.settings.items() if name != key}
        replace(made, settings=told).to_json(path)
        with pytest.raises(ValueError, match=rf"json: expected {key} = .* among its settings, got none"):
            text_of(tmp_path, "norms")
    replace(made, settings={**made.settings, "seed": 5}).to_json(path)
    with pytest.raises(ValueError, match=r"got that of .* of seed 5"):
        text_of(tmp_path, "norms")
    given = LDREG.but(ldreg__norm="l1")  # as records of it, which leave out what nobody changed
    put(tmp_path, given, [{"lid": 6.0}])
    assert read_records([given], record_paths(tmp_path), ())


def test_it_replaces_no_file_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, SIMCLR, [{"lid": 6.0}])
    (record,) = tmp_path.glob("*.json")
    before = record.read_text()
    words = ["reproduce", "table1", "--results", str(tmp_path), "--write"]
    assert main([*words, str(record)]) == 2
    assert "it is there and no text of ldreg reproduce --write" in capsys.readouterr().err
    assert record.read_text() == before
    for _ in range(2):
        assert main([*words, str(tmp_path / "text.md")]) == 0


def test_the_first_table_counts_runs_effects_and_claims_of_each_study(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"lid": 6.0, "effective_rank": 20.0, "linear": 0.9, "minutes": 1.0}] * 2)
    put(tmp_path, LDREG, [{"lid": 7.0, "effective_rank": 19.0, "linear": 0.9, "minutes": 1.0}])
    told = section(text_of(tmp_path, "table1,wallclock"), "At a glance").splitlines()
    assert told[2].endswith("Linear probe within noise 1; Effective rank within noise 1; LID as in the paper 1.")
    assert told[4] == "| Study | Runs | Epochs | Seeds | As in the paper | Opposite | Within noise |"
    assert told[6] == "| Table 1: linear evaluation and dimensions | 3 | 40 | 1 to 2 | 1 | 0 | 2 |"
    assert told[7] == "| Table 4: wall-clock time | 3 | 40 | 1 to 2 | – | – | – |"
    assert "At a glance" not in text_of(tmp_path, "table1")
    put(tmp_path, DIGITS.arm("byol"), [{"lid": 7.0, "effective_rank": 10.0}])
    told = section(text_of(tmp_path, "table1,figure2cd"), "At a glance").splitlines()
    # LDReg raises LID, and lowers rank within noise. BYOL should have the highest rank of the two, and the lowest LID.
    assert told[7].endswith("| 4 | 40 | 1 to 2 | 1 | 3 | 1 |")


def test_what_people_say_of_the_runs_is_put_last_and_linked_first(tmp_path: Path) -> None:
    put(tmp_path, SIMCLR, [{"lid": 6.0}])
    (tmp_path / "notes.md").write_text("Images were *small*: 8 × 8.\n", encoding="utf-8")
    text = text_of(tmp_path, "table1")
    assert "\n\n## About these runs\n\nImages were *small*: 8 × 8.\n\n## Where the numbers come from" in text
    assert text.index("[about these runs](#about-these-runs)") < text.index("## Table 1") < text.index("## About these")
    (tmp_path / "notes.md").write_text(" \n")
    assert "bout these runs" not in text_of(tmp_path, "table1")
    (tmp_path / "notes.md").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"notes\.md: expected text in UTF-8, got other bytes"):
        text_of(tmp_path, "table1")
