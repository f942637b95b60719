"""The words of sets that had no part in choosing the rules: what benchmarks/words.json keeps is what they are."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from ldreg.inspection import inspect

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "check_words.py"))
KEPT: dict[str, list[dict[str, Any]]] = json.loads((ROOT / "benchmarks" / "words.json").read_text(encoding="utf-8"))
CHEAP = [
    "wine", "breast cancer, scaled", "iris", "diabetes", "Student's t, 3, by radius", "log-normal",
    "mixture of 10, far apart", "mixture of 100, 20 points each", "class probabilities, confident", "16 bits",
    "int8", "repeated tokens", "two views of each", "random walk", "6 of 128 coordinates",
]  # fmt: skip


@pytest.mark.usefixtures("quick_danco")
@pytest.mark.parametrize("name", CHEAP)
def test_sets_are_told_as_they_were(name: str) -> None:
    k, draw = SCRIPT["SETS"][name]
    kept = next(row for row in KEPT["sets"] if row["set"] == name)
    found = SCRIPT["told"](inspect(draw(), k=k))
    assert SCRIPT["spoken"](found) == SCRIPT["spoken"](kept)
    assert found["lid"] == pytest.approx(kept["lid"], rel=0.01)
    assert found["usual"] == pytest.approx(kept["usual"], rel=0.01)


def test_the_document_has_what_is_kept() -> None:
    lines = (ROOT / "docs" / "guidance.md").read_text(encoding="utf-8").splitlines()
    for line in (*SCRIPT["encoder_table"](KEPT["encoders"], "train"), *SCRIPT["set_table"](KEPT["sets"])):
        assert line in lines


def test_sound_encoders_are_not_called_collapsed_and_spoiled_ones_are_not_passed_over() -> None:
    for row in KEPT["encoders"]:
        poor = row["effective_rank"] < 0.1 * row["dimensions"]
        assert ("they fill few directions" in row["words"]) == poor
        assert ("Local collapse beside" in row["words"]) == (row["beside"] == "collapse")
        if row["knn"] > 0.9:
            assert "Local collapse" not in row["words"]
        if "Min LID 1" in row["encoder"] or "invariance" in row["encoder"]:
            assert poor
            assert row["images"] == "digits" or row["beside"] == "collapse"
