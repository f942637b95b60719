"""Cases of the command line itself: help, completion, plans, errors, exit codes."""

import re
from pathlib import Path
from typing import Any

import PIL.Image
import yaml
from tests.golden.cases import case
from tests.golden.frozen import digest
from tests.golden.measured import seen, with_labels
from tests.golden.place import Answer, Place

ROOT = Path(__file__).parents[2]
COMMANDS = ("inspect", "demo", "export", "bench", "completion", "pretrain", "evaluate", "report", "reproduce")
EVALUATIONS = ("linear", "knn", "finetune", "dimension", "transfer", "detection")
STUDIES = (
    *("table1", "table2", "table3", "wallclock", "norms", "minlid", "batches", "methods", "regularizers", "figure1"),
    *("figure2a", "figure2b", "figure2cd", "targets", "tsne", "ablation", "conventions", "neighborhoods", "references"),
    *("starts", "search", "anchor"),
)


@case()
def help_of_every_command(place: Place) -> Any:
    commands = [(), *((one,) for one in COMMANDS), *(("evaluate", one) for one in EVALUATIONS)]
    return {f"ldreg {' '.join(words)}".strip(): helped(place.ldreg(*words, "--help")) for words in commands}


def helped(answer: Answer) -> Any:
    """The options that a help text lists at the head of a line."""
    heads = [line.strip().partition("  ")[0] for line in answer.out.splitlines() if line.strip().startswith("-")]
    return {"at_least": sorted({option for head in heads for option in re.findall(r"(?<![\w-])--[a-z][\w.-]*", head)})}


@case()
def help_of_every_method(place: Place) -> Any:
    found = {}
    for method in ("simclr_tuned", "byol", "moco", "vicreg", "barlow_twins", "mae"):
        found[method] = helped(place.ldreg("pretrain", "--method", method, "--help"))
    for regularizer in ("none", "minlid", "covariance", "variance_covariance", "koleo", "sigreg"):
        found[regularizer] = helped(place.ldreg("pretrain", "--regularizer", regularizer, "--help"))
    return found


@case()
def recipes(place: Place) -> Any:
    """All settings of the default recipe, and how every other recipe differs from it."""
    names = place.ldreg("pretrain", "--list_recipes").out.split()
    base = settings(place.ldreg("pretrain", "--print_config").out)
    found: dict[str, Any] = {"names": names, "default": base}
    for name in names:
        one = settings(place.ldreg("pretrain", "--recipe", name, "--print_config").out)
        found[name] = {key: value for key, value in one.items() if key not in base or base[key] != value}
        found[name]["absent"] = sorted(base.keys() - one.keys())
    return found


def settings(text: str) -> dict[str, Any]:
    """Settings in YAML by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in yaml.safe_load(text).items():
        found.update({f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value})
    return found


@case()
def completion(place: Place) -> Any:
    found = {}
    for shell in ("bash", "zsh", "fish"):
        text = place.ldreg("completion", shell).out
        found[shell] = {
            "lines": len(text.splitlines()) > 5,
            "names ldreg": "ldreg" in text,
            "--labels": "labels" in text,
        }
    return found


# words: the exit code, and what the one line on stderr must name
ERRORS: dict[tuple[str, ...], tuple[int, str]] = {
    (): (2, ""),
    ("inspekt",): (2, "inspect"),
    ("--verzion",): (2, "--verzion"),
    ("inspect",): (2, "file"),
    ("inspect", "missing.npy"): (2, "missing.npy"),
    ("inspect", "x.npy", "--k", "0"): (2, "k"),
    ("inspect", "x.npy", "--k", "many"): (2, "k"),
    ("inspect", "x.npy", "--k", "400"): (2, "k"),
    ("inspect", "x.npy", "--estimator", "mum"): (2, "estimator"),
    ("inspect", "x.npy", "--labels", "missing.csv"): (2, "missing.csv"),
    ("inspect", "x.npy", "--labels", "short.csv"): (2, "short.csv"),
    ("inspect", "x.npy", "--lables", "y.csv"): (2, "--labels"),
    ("inspect", "x.npy", "--device", "tpu"): (2, "device"),
    ("inspect", "x.npy", "--sample", "0"): (2, "sample"),
    ("inspect", "broken.npy"): (2, "broken.npy"),
    ("inspect", "x.npy", "--key", "z"): (2, "key"),
    ("inspect", "x.npy", "--json", "nowhere/found.json"): (2, "nowhere"),
    ("completion", "csh"): (2, "csh"),
    ("completion",): (2, "shell"),
    ("export", "missing"): (2, "missing"),
    ("bench", "nothing"): (2, "nothing"),
    ("bench", "lid", "--sizes", "9"): (2, "sizes"),
    ("bench", "lid", "--contenders", "nobody"): (2, "nobody"),
    ("pretrain", "--epochs", "2"): (2, "schedule.epochs"),
    ("pretrain", "--recipe", "digits/nothing"): (2, "digits/nothing"),
    ("pretrain", "--method", "simkler"): (2, "simclr"),
    ("pretrain", "--schedule.epochs", "0"): (2, "epochs"),
    ("pretrain", "--batch_size", "-1"): (2, "batch_size"),
    ("pretrain", "--ldreg.k", "0"): (2, "k"),
    ("pretrain", "--data.name", "nothing"): (2, "data.name"),
    ("pretrain", "--encoder.name", "resnet19"): (2, "encoder.name"),
    ("pretrain", "--resume", "missing"): (2, "missing"),
    ("pretrain", "--resume", "."): (2, ""),
    ("pretrain", "--out", "full"): (2, "full"),
    ("pretrain", "--byol.momentum", "0.9"): (2, "byol.momentum"),
    ("pretrain", "stray"): (2, "stray"),
    ("evaluate",): (2, "kind"),
    ("evaluate", "liner", "x"): (2, "linear"),
    ("evaluate", "linear"): (2, "source"),
    ("evaluate", "linear", "missing"): (2, "missing"),
    ("evaluate", "linear", "full"): (2, "full"),
    ("evaluate", "knn", "x.npy"): (2, "x.npy"),
    ("evaluate", "linear", "full", "--protocol", "slow"): (2, "protocol"),
    ("evaluate", "linear", "full", "--k", "2"): (2, "--k"),
    ("evaluate", "transfer", "full"): (2, "datasets"),
    ("evaluate", "detection", "full"): (2, "path"),
    ("report",): (2, "run"),
    ("report", "missing"): (2, "missing"),
    ("report", "record.json"): (2, "record.json"),
    ("report", "full", "--thumbnails", "x"): (2, "thumbnails"),
    ("reproduce", "table9"): (2, "table9"),
    ("reproduce", "table1", "--scale", "mnist"): (2, "scale"),
    ("reproduce", "anchor", "--plan"): (2, "scale"),
    ("reproduce", "table1", "--seeds", "0"): (2, "seeds"),
    ("reproduce", "table1", "--datasets", "a=b"): (2, "datasets"),
    ("reproduce", "table1", "--epochs", "0"): (2, "epochs"),
    ("reproduce", "table1", "--methods", "simkler"): (2, "methods"),
    ("demo", "--epochs", "0"): (2, "epochs"),
    ("demo", "--seed", "-1"): (2, "seed"),
}


@case()
def errors(place: Place) -> Any:
    """Wrong arguments and files: the exit code, and that one line names what was wrong."""
    with_labels(place)
    (place.folder / "short.csv").write_text("label\n1\n2\n", encoding="utf-8")
    (place.folder / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00v")
    (place.folder / "record.json").write_text("{}", encoding="utf-8")
    (place.folder / "full").mkdir()
    (place.folder / "full" / "note.txt").write_text("not a run", encoding="utf-8")
    before = place.tree()
    found = {}
    for words, (code, named) in ERRORS.items():
        answer = place.answer(*words)
        lines = answer.err.strip().splitlines()
        if not words:
            assert "inspect" in answer.err
        else:
            assert named.lower() in answer.err.lower(), (words, answer.err)
            assert len(lines) == 1, (words, answer.err)
            assert lines[0].startswith("ldreg"), (words, answer.err)
        assert answer.code == code, (words, answer.code, answer.err)
        assert not answer.out, (words, answer.out)
        found[" ".join(words)] = answer.code
    assert place.tree() == before
    return found


@case()
def plans(place: Place) -> Any:
    """Names and epochs of the runs that are planned, with none of them there; nothing is written."""
    found = {
        " ".join(words): planned(place.ldreg("reproduce", *words, "--plan").out)
        for words in (
            ("table1",),
            ("all", "--scale", "cifar10"),
            ("table1", "--seeds", "2", "--methods", "simclr", "--epochs", "7"),
        )
    }
    assert place.tree() == []
    return found


@case(slow=True)
def plans_of_every_study(place: Place) -> Any:
    found: dict[str, Any] = {}
    for split in ("train", "val"):  # the plan at this scale looks at the images
        picture = place.shared / "imagenet" / split / "only" / "1.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", (8, 8)).save(picture)
    for scale in ("digits", "cifar10", "imagenet"):
        path = ("--data.path", place.shared / "imagenet") if scale == "imagenet" else ()
        for study in STUDIES:
            answer = place.answer("reproduce", study, "--plan", "--scale", scale, *path)
            found[f"{study} {scale}"] = {"code": answer.code, "runs": planned(answer.out)}
    return found


def planned(table: str) -> list[str]:
    """Run and epochs of each row of the table of runs."""
    return [f"{run} {epochs}" for run, epochs in re.findall(r"^ *(\S+) +missing +([\d,]+) ", table, re.MULTILINE)]


FIELDS = (  # of a record, in every version
    *(
        "name",
        "settings",
        "results",
        "curves",
        "lid",
        "eigenvalues",
        "map",
        "labels",
        "origin",
        "points",
        "k",
        "tested",
    ),
    *("most_collapsed", "least_collapsed", "tsne", "tsne_labels", "images", "voters", "notes"),
)


@case()
def records(place: Place) -> Any:
    """All records of results/cifar10, read and written by `ldreg report`."""
    files = sorted((ROOT / "results" / "cifar10").glob("*seed*.json"))
    place.ldreg("report", *files, "--json", "written", "--out", "page.html")
    written = sorted((place.folder / "written").glob("*.json"))
    page = (place.folder / "page.html").read_text(encoding="utf-8")
    found = {file.stem: place.json(file) for file in written}
    names = [one["name"] for one in found.values()]
    digests = {name: {field: digest(one[field]) for field in FIELDS} for name, one in found.items()}
    results = {name: one["results"] for name, one in found.items()}
    return {"count": len(found), "digests": digests, "results": results, "page": seen(page, *names[:3])}
