"""Every command does what it did when the golden data was written; see regenerate.py."""

from pathlib import Path

import pytest
import torch
from tests.golden.cases import CASES
from tests.golden.frozen import differences, read, round_trip
from tests.golden.place import Place


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if case.slow else []) for name, case in CASES.items()]
)
@pytest.mark.filterwarnings("default")
def test_golden(name: str, tmp_path: Path, shared: Path) -> None:
    case = CASES[name]
    expected = read(name)
    actual = round_trip(case.frozen(Place(tmp_path, shared)))
    found = list(differences(expected["result"], actual["result"], case.tolerance))
    assert not found, "\n".join(found[:40])


def test_every_file_of_golden_data_belongs_to_a_case() -> None:
    files = {file.stem for file in (Path(__file__).parent / "data").glob("*.json")}
    assert files == set(CASES)


def test_torch_is_named_in_golden_data() -> None:
    assert read("public_values")["torch"].partition(".")[0] == torch.__version__.partition(".")[0]
