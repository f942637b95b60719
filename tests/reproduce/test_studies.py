import re
from dataclasses import replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from lightly.transforms.simclr_transform import SimCLRTransform
from tests.reproduce.words import request

from ldreg.methods.simclr import SimCLRConfig
from ldreg.optim import scaled_lr
from ldreg.reproduce.jobs import Job, merged
from ldreg.reproduce.studies import METHODS, PAPER, SCALES, STUDIES, Arm, Scale, Study, chosen, recipe_settings
from ldreg.train.module import build_regularizer
from ldreg.train.settings import REGULARIZERS
from ldreg.views.config import NORMALIZATIONS

TEXT = Path(__file__).parents[3] / "shared" / "paper.tex"


@cache
def tree(recipe: str) -> dict[str, Any]:
    return Job(Arm(recipe), 0).settings.tree


@pytest.mark.parametrize("scale", SCALES)
def test_every_run_of_every_study_has_settings_and_a_name_of_its_own(scale: str) -> None:
    asked = request(["all", "--scale", scale, "--coco", "coco"])
    names = [job.name for job in asked.jobs]
    assert len(set(names)) == len(names) > 40
    assert all(re.fullmatch(r"[A-Za-z0-9_.=-]+", name) for name in names)
    identities = {str(sorted(job.settings.tree.items())) for job in asked.jobs}
    assert len(identities) == len(names), "two names for one run"


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_an_arm_that_equals_its_recipe_is_the_recipe(scale) -> None:  # type: ignore[no-untyped-def]
    """Runs are shared between studies only where the usual value of an ablation is known to be the recipe's.

    Those of both searches have all values in their names, since recipes change by what they find.
    """
    for study in (study for study in STUDIES.values() if study.name not in ("search", "baselines")):
        for row in study.rows(scale):
            known = tree(row.arm.recipe)
            for key, value in row.arm.options:
                node = known
                for part in key.split("."):
                    node = node.get(part, {}) if isinstance(node, dict) else {}
                told = key.startswith(("schedule", "minlid", "data", "encoder"))  # given to be plain, not to vary
                assert told or str(node) != value, f"{study.name}: {row.arm.slug} has {key} = {value} anyway"


def test_rows_are_compared_with_a_row_that_is_no_comparison_itself_but_for_norms() -> None:
    for scale in SCALES.values():
        for study in STUDIES.values():
            rows = study.rows(scale)
            for row in rows:
                assert len(row.names) == len(study.keys)
                base = None if row.baseline is None else rows[row.baseline]
                if study.name == "norms" and row.names[0] == "L2":
                    assert base is not None
                    assert base.names == ("L1", row.names[1])
                    assert row.arm == base.arm.but(ldreg__norm="l2")
                else:
                    assert base is None or base.baseline is None


def k_of(scale: Scale, recipe: str) -> int:
    return int(recipe_settings(f"{scale.name}/{recipe}").regularizer["k"])


def test_a_chosen_k_is_in_the_name_and_compared_with_the_usual_one() -> None:
    cifar10 = SCALES["cifar10"]
    usual = {method: k_of(cifar10, f"{method}_ldreg") == cifar10.k for method in cifar10.methods}
    assert not usual["byol"]
    for row in STUDIES["figure2a"].rows(cifar10):
        assert (", k " in row.names[1]) == (row.baseline is not None and not usual[row.group])
    rows = STUDIES["neighborhoods"].rows(cifar10)
    assert {row.names[0] for row in rows} == {METHODS[name] for name in usual if name == "moco" or not usual[name]}
    for method in dict.fromkeys(row.names[0] for row in rows):
        plain, *with_ldreg = [row for row in rows if row.names[0] == method]
        assert [row.names[2] for row in with_ldreg] == (["16", "64", "128"] if method == "MoCo" else ["64", "128"])
        for row in with_ldreg:
            assert row.baseline == rows.index(plain)
            assert Job(row.arm, 0).settings.regularizer["k"] == int(row.names[2])
    assert not STUDIES["neighborhoods"].rows(SCALES["imagenet"])
    assert {row.names[0] for row in STUDIES["neighborhoods"].rows(SCALES["digits"])} == {"MoCo"}


def test_studies_of_other_things_have_the_usual_k() -> None:
    for scale in SCALES.values():
        for study in ("norms", "minlid", "batches", "regularizers", "ablation", "conventions"):
            own = [row.arm for row in STUDIES[study].rows(scale) if "ldreg.k" not in dict(row.arm.options)]
            found = {k_of(scale, arm.recipe.rpartition("/")[2]) for arm in own if arm.recipe.endswith("_ldreg")}
            assert found <= {scale.k}, (scale.name, study)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_conventions_and_references_vary_that_alone(scale) -> None:  # type: ignore[no-untyped-def]
    for name, key, usual, values in (
        ("conventions", "convention", "paper", ["pseudocode", "pseudocode"]),
        ("references", "queue_size", 0, [*scale.queues, scale.queues[1]]),
    ):
        rows = STUDIES[name].rows(scale)
        compared = [(row, rows[row.baseline]) for row in rows if row.baseline is not None]
        assert len(values) == len(compared) > 1
        for (row, base), value in zip(compared, values, strict=True):
            own, other = (Job(one.arm, 0).settings for one in (row, base))
            assert build_regularizer("ldreg", own.regularizer).__dict__[key] == value
            assert build_regularizer("ldreg", other.regularizer).__dict__[key] == usual
            assert {**own.regularizer, key: usual} == {**other.regularizer, key: usual}
            assert own.run == other.run


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_starts_vary_the_first_epoch_of_ldreg_alone(scale) -> None:  # type: ignore[no-untyped-def]
    rows = STUDIES["starts"].rows(scale)
    compared = [(row, rows[row.baseline]) for row in rows if row.baseline is not None]
    assert len(compared) == 4
    for row, base in compared:
        own, other = (Job(one.arm, 0).settings for one in (row, base))
        assert own.run == replace(other.run, regularizer_start=float(row.x))
        assert row.names[2] == str(int(row.x) + 1)
        assert (own.regularizer, other.run.regularizer_start) == (other.regularizer, 0.0)
    share = {row.x / Job(row.arm, 0).settings.schedule.epochs for row, _ in compared}
    assert share == {0.1, 0.5}
    assert [row.names[2] for row in STUDIES["starts"].rows(scale.with_epochs(2))] == ["-", "1", "2"] * 2
    assert [row.names[2] for row in STUDIES["starts"].rows(scale.with_epochs(1))] == ["-", "1"] * 2


def test_every_regularizer_is_compared_on_byol() -> None:
    for scale in SCALES.values():
        rows = STUDIES["regularizers"].rows(scale)
        names = [row.names[0] for row in rows[::2]]
        assert names == ["None", "Cov", "Cov+Var", "KoLeo", "SIGReg", "SIGReg, centered"]
        assert len({row.arm for row in rows}) == len(rows)
        assert {Job(row.arm, 0).settings.run.regularizer for row in rows} == {"none", *REGULARIZERS} - {"minlid"}
        assert {Job(row.arm, 0).settings.run.method for row in rows} == {"byol"}


def test_lightlys_recipe_is_lightlys_in_our_settings() -> None:
    settings = Job(Arm("cifar10/simclr_lightly"), 0).settings
    assert scaled_lr(settings.optimizer, settings.run.batch_size) == 0.24
    assert (settings.optimizer.name, settings.optimizer.momentum, settings.optimizer.weight_decay) == ("sgd", 0.9, 5e-4)
    assert settings.optimizer.decay_all  # its SGD has one group of all parameters
    assert (settings.encoder.init, settings.encoder.zero_init) == ("torch", False)
    assert (settings.schedule.warmup_epochs, settings.run.batch_size, settings.run.regularizer) == (0, 512, "none")
    assert settings.method == SimCLRConfig(temperature=0.5, projector=(512, 128))
    # The defaults of lightly's transform, its four intensities halved, without blur.
    theirs = signature(SimCLRTransform).parameters
    policy = settings.views.resolve()
    assert policy.jitter == tuple(
        0.5 * theirs[name].default for name in ("cj_bright", "cj_contrast", "cj_sat", "cj_hue")
    )
    assert policy.jitter_probability == theirs["cj_prob"].default
    assert (policy.scale, policy.interpolation) == ((theirs["min_scale"].default, 1.0), "bilinear")
    assert (policy.flip, policy.grayscale) == (theirs["hf_prob"].default, theirs["random_gray_scale"].default)
    assert policy.blur == policy.solarize == (0.0, 0.0)
    assert theirs["normalize"].default["mean"] == list(NORMALIZATIONS[settings.views.normalization][0])


def test_names_and_numbers_of_the_paper_choose_studies() -> None:
    assert [study.name for study in chosen("table13,figure2c")] == ["minlid", "figure2cd"]
    assert len(chosen("all")) == len(chosen("All")) == len(STUDIES)
    assert chosen(" Tables ,TABLE1") == chosen("tables")
    with pytest.raises(ValueError, match=r"got ''$"):
        chosen("table1,,minlid")
    with pytest.raises(ValueError, match=r"expected all or names among table1.*got 'table99'"):
        chosen("table1,table99")


def test_a_run_that_two_studies_need_is_one_run_with_both_measures() -> None:
    arm = Arm("digits/simclr")
    jobs = merged([Job(arm, 0, frozenset({"tsne"})), Job(arm, 1), Job(arm, 0, frozenset({"transfer"}))])
    assert [(job.seed, sorted(job.measures)) for job in jobs] == [(0, ["transfer", "tsne"]), (1, [])]


@pytest.mark.skipif(not TEXT.exists(), reason="needs the text of the paper")
def test_the_paper_says_these_numbers() -> None:
    rows = {name: [row for row in STUDIES[name].rows(SCALES["digits"]) if row.values] for name in STUDIES}
    text = re.sub(r"\\textbf\{([^}]*)\}", r"\1", TEXT.read_text())
    lines = re.sub(r"[ \t]+", " ", text).replace(" &36.48", " & 36.48")
    for values in [*PAPER.values(), *(row.values for row in rows["regularizers"])]:
        numbers = [f"{value:.2f}" if "box_ap" in values else f"{value}" for value in values.values()]
        assert " & ".join(numbers).replace("nan & nan & nan", "Complete collapse & - & -") in lines
    for end in ("", "_ldreg"):
        accuracies = [PAPER[f"batch_{size}{end}"]["linear"] for size in (512, 1024, 2048)]
        assert "& " + " & ".join(map(str, accuracies)) + " " in lines
    norms = [row.values["linear"] for row in rows["norms"]][1:]
    for norm, both in (("L1", norms[:2]), ("L2", norms[2:])):
        assert f"& $\\mathcal{{L}}_{{{norm}}}$ & {both[0]} & {both[1]} " in lines
    for name, row in zip(("SimCLR", "SimCLR + LDReg"), rows["wallclock"], strict=True):
        assert f"{name} & {row.values['minutes'] / 60:.1f} hours" in lines


def test_a_study_is_an_entry_of_the_file() -> None:
    entries: list[dict[str, Any]] = [
        {"names": ["-"], "recipe": "simclr"},
        {"for": {"beta": [0.2, 0.1]}, "rows": [
            {"names": ["{beta:g}"], "recipe": "simclr_ldreg", "set": {"ldreg.beta": "{beta}"}, "against": "first"},
        ]},
    ]  # fmt: skip
    rows = Study("mine", "Mine", "", ("beta",), entries).rows(SCALES["digits"])
    assert [(row.names, row.baseline) for row in rows] == [(("-",), None), (("0.2",), 0), (("0.1",), 0)]
    assert [row.arm.slug for row in rows] == [
        "simclr-epochs40",
        "simclr_ldreg-beta0.2-epochs40",
        "simclr_ldreg-epochs40",
    ]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"names": ["-"], "recipe": "simclr", "sets": {}}, "expected keys among .*, got .*sets"),
        ({"names": ["-"], "recipe": "simclr", "against": "plain"}, "against: expected the id of a row above"),
        ({"names": ["-", "-"], "recipe": "simclr"}, "names: expected 1, got"),
        ({"names": ["-"], "recipe": "simclr", "paper": "nothing"}, "paper: expected one of simclr, .*, got 'nothing'"),
        ({"names": ["-"], "recipe": "nothing", "set": {"batch_size": 8}}, "recipe: expected .* got 'digits/nothing'"),
    ],
)
def test_a_wrong_row_is_an_error(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Study("wrong", "Wrong", "", ("beta",), [entry]).rows(SCALES["digits"])
