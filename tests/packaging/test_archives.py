"""Wheel and source archive hold what they should, and what is said of the package is true."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from tests.packaging.transcript import ROOT, build

from ldreg import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


def ours(folder: str) -> set[str]:
    """The files below a folder of the working directory that belong to the project."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.mark.slow
def test_wheel_holds_the_package_its_data_and_its_license(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = f"ldreg-{__version__}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        entries = wheel.read(f"{info}/entry_points.txt").decode()
    assert {f"src/{name}" for name in names if not name.startswith(info)} == ours("src")
    assert {"ldreg/py.typed", f"{info}/licenses/LICENSE"} <= names
    assert "ldreg = ldreg.__main__:run" in entries
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("ldreg", __version__, "MIT")
    assert {"all", "detection", "parquet", "train"} <= set(metadata.get_all("Provides-Extra") or [])
    assert metadata["Project-URL"] is None  # there is no page to name yet


@pytest.mark.slow
def test_source_archive_holds_what_its_tests_need(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"ldreg-{__version__}"
    names = {found.relative_to(root).as_posix() for found in root.rglob("*") if found.is_file()}
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "results"):
        assert ours(folder) <= names, folder
    assert {"LICENSE", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"} <= names
    quick = ("tests/test_architecture.py", "tests/test_cli.py", "tests/dimension/test_geometry.py")
    environment = {"PYTHONPATH": str(root / "src"), "PATH": "", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *quick]
    done = subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_extras_bring_what_errors_promise() -> None:
    from ldreg.extras import _BRINGS

    called = {
        "skdim": "scikit-dimension",
        "umap": "umap-learn",
        "faiss": "faiss-cpu",
        "pytorch_lightning": "pytorch-lightning",
    }
    for extra, packages in _BRINGS.items():
        lines = PROJECT["optional-dependencies"][extra]
        for package in packages:
            assert any(re.match(rf"{called.get(package, package)}[>=\[]", line) for line in lines), package


def test_core_needs_no_package_of_training() -> None:
    names = {re.split(r"[>=\[]", line)[0] for line in PROJECT["dependencies"]}
    training = "torchvision timm lightly pytorch-lightning lightning pycocotools tensorboard wandb"
    assert names.isdisjoint(training.split())
    assert {"torch", "numpy", "jsonargparse"} <= names


def test_version_is_semantic_and_the_same_everywhere() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert (citation["cff-version"], citation["license"]) == ("1.2.0", PROJECT["license"])
    assert citation["authors"] == PROJECT["authors"] == [{"name": "The ldreg authors"}]
    paper = citation["preferred-citation"]
    assert citation["references"] == [paper]
    readme = (ROOT / "README.md").read_text()
    assert paper["title"] in " ".join(readme.split())
    assert [person["family-names"] for person in paper["authors"]][:2] == ["Huang", "Campello"]


def test_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= set(kinds)
