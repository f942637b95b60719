"""Recipes: the paper's values, bases, and what is refused."""

import os
from pathlib import Path

import pytest

from ldreg.train.recipes import flattened, load_recipe, read_yaml, recipe_names
from ldreg.train.settings import Settings, resolve

METHODS = ("simclr", "simclr_tuned", "byol", "mae", "moco", "vicreg", "barlow_twins")


def settings(name: str) -> Settings:
    return resolve(load_recipe(name))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", ["digits", "cifar10", "imagenet"])
def test_every_method_has_a_recipe_with_and_without_ldreg_at_every_scale(scale: str, method: str) -> None:
    plain, regularized = settings(f"{scale}/{method}"), settings(f"{scale}/{method}_ldreg")
    assert (plain.run.method, plain.run.regularizer) == (method, "none")
    assert (regularized.run.method, regularized.run.regularizer) == (method, "ldreg")
    differing = {key for key, value in flattened(regularized.tree).items() if flattened(plain.tree).get(key) != value}
    assert {key.partition(".")[0] for key in differing} == {"regularizer", "ldreg"}


@pytest.mark.parametrize(
    ("name", "beta", "k", "batch", "epochs"),
    [
        ("simclr_ldreg", 0.01, 64, 2048, 100),
        ("simclr_bs512_ldreg", 0.01, 16, 512, 100),
        ("simclr_bs1024_ldreg", 0.01, 32, 1024, 100),
        ("simclr_bs4096_e1000_ldreg", 0.01, 64, 4096, 1000),
        ("simclr_ldreg_k128", 0.01, 128, 2048, 100),
        ("simclr_tuned_ldreg", 0.01, 64, 2048, 100),
        ("byol_ldreg", 0.005, 64, 2048, 100),
        ("simclr_vit_ldreg", 0.001, 64, 2048, 200),
        ("mae_ldreg", 5e-6, 64, 2048, 200),
        ("moco_ldreg", 0.05, 128, 2048, 100),
        ("vicreg_ldreg", 0.025, 64, 2048, 100),
        ("barlow_twins_ldreg", 1.0, 64, 2048, 100),
    ],
)
def test_imagenet_recipes_have_the_papers_beta_and_k(name: str, beta: float, k: int, batch: int, epochs: int) -> None:
    found = settings(f"imagenet/{name}")
    assert (found.regularizer["beta"], found.regularizer["k"]) == (beta, k)
    assert (found.run.batch_size, found.schedule.epochs) == (batch, epochs)
    assert (found.data.name, found.data.size) == ("imagenet", 224)


def test_a_recipe_is_a_delta_over_its_base(tmp_path: Path) -> None:
    tree = load_recipe("imagenet/simclr_bs4096_e1000_ldreg")
    assert tree["schedule"] == {"epochs": 1000, "warmup_epochs": 10}
    assert tree["optimizer"]["name"] == "lars"
    assert "base" not in tree
    assert not [name for name in recipe_names() if "_common" in name]  # shared parts are no recipes
    (tmp_path / "mine.yaml").write_text("base: digits/byol\noptimizer: {lr: 1e-3}\n")
    found = settings(str(tmp_path / "mine.yaml"))
    assert (found.run.method, found.optimizer.lr) == ("byol", 1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "expected a mapping"),
        ("a: [", "expected YAML"),
        ("1: 2", "got a key that is no name"),
        ("data: {on: 2}", "got a key that is no name"),
        ("data: {[a]: 2}", "got a key that is no name"),
        ("batch_size: 2020-01-01", "got a date or sign without quotes"),
        ("batch_size: 2020-13-45", "got a date or sign without quotes"),
        ("data: {<<: {x: 1}}", "got a date or sign without quotes"),
        ("batch_size: !!bool maybe", "got a tag"),
        ("batch_size: 0b_", "expected YAML"),
        ("data: &a {x: *a}", "got an anchor or alias"),
        ("a: &a [1]\nb: *a", "got an anchor or alias"),
        ("seed: 1\nseed: 2", "got the key 'seed' twice"),
        ("data: {name: x, 'name': y}", "got the key 'name' twice"),
        ("[" * 100_000, "expected YAML"),
        ("# " + "x" * 1_000_000, "more than 1000000 bytes"),
        ("base: 3", "base: expected the name of a recipe, got 3"),
        ("x: !!python/object/apply:os.system ['true']", "expected YAML"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_recipe(str(path))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ValueError, match=rf"^\S+{name}\.yaml: expected .*, got a {name}"):
            load_recipe(str(tmp_path / f"{name}.yaml"))
    with pytest.raises(FileNotFoundError):
        load_recipe(str(tmp_path / "gone.yaml"))


def test_a_base_is_sought_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "there" / "mine.yaml").write_text("base: other.yaml\nbatch_size: 8\n")
    (tmp_path / "there" / "other.yaml").write_text("base: ../third.yml\nseed: 3\n")
    (tmp_path / "third.yml").write_text(f"base: {tmp_path}/last.yaml\n")
    (tmp_path / "last.yaml").write_text("base: digits/byol\n")
    found = settings("../there/mine.yaml")
    assert (found.run.batch_size, found.run.seed, found.run.method) == (8, 3, "byol")


@pytest.mark.parametrize("base", ["../here/mine.yaml", "../here/other.yaml"])
def test_a_circle_of_bases_is_refused(base: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.yaml").write_text(f"base: {base}")
    (tmp_path / "here" / "other.yaml").write_text(f"base: {tmp_path}/here/mine.yaml")
    with pytest.raises(ValueError, match="without a circle"):
        load_recipe(str(tmp_path / "here" / "mine.yaml"))


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "numbers.yaml"
    path.write_text("a: {b: 1e-6, c: [2E3, x1e5]}\nd: 5\n")
    assert read_yaml(path) == {"a": {"b": 1e-6, "c": [2000.0, "x1e5"]}, "d": 5}
