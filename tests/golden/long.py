"""Slow cases: signals, detection, the demo, and a study that is run."""

import json
import signal
from typing import Any

import numpy
import safetensors.torch
import timm
import torch
from PIL import Image
from tests.golden.cases import case
from tests.golden.measured import seen
from tests.golden.place import TINY, Place


@case(slow=True, training=True)
def signals(place: Place) -> Any:
    """SIGINT and SIGTERM end `pretrain` with 130 and 143; it then goes on to the numbers of a run left alone."""
    words = ("--schedule.epochs", "6", *TINY[2:], "--data.limit", "512", "--trainer.checkpoint_steps", "1")
    found: dict[str, Any] = {}
    for stop in (signal.SIGINT, signal.SIGTERM):
        run = place.folder / stop.name
        checkpoint = run / "checkpoints" / "last.ckpt"
        answer = place.process("pretrain", "--out", run, *words, stop=stop, when=checkpoint.exists)
        found[stop.name] = {"code": answer.code, "files": {"at_least": place.tree(run)}}
        place.ldreg("pretrain", "--resume", run)
    place.ldreg("pretrain", "--out", "alone", *words)
    for name in ("SIGINT", "SIGTERM", "alone"):
        weights = safetensors.torch.load_file(place.folder / name / "encoder.safetensors")
        found[f"{name} weights"] = {key: float(weight.double().abs().sum()) for key, weight in weights.items()}
    assert found["SIGINT weights"] == found["SIGTERM weights"] == found["alone weights"]
    return found


@case(slow=True)
def exit_when_time_is_over(place: Place) -> Any:
    """`reproduce --minutes` ends with 75 where runs are left."""
    words = ("table1", "--methods", "simclr", "--epochs", "2000", "--jobs", "1", "--minutes", "1", "--out", "here")
    answer = place.answer("reproduce", *words)
    return {"code": answer.code}


@case(slow=True, training=True)
def reproduce(place: Place) -> Any:
    """A study at the smallest scale: its runs, records, tables and report; `--show` then trains nothing."""
    words = ("table1", "--methods", "simclr", "--epochs", "1", "--jobs", "1", "--out", "here")
    first = place.ldreg("reproduce", *words)
    files = place.tree("here")
    records = {name: place.json(f"here/results/{name}") for name in place.tree("here/results") if ".json" in name}
    shown = place.ldreg("reproduce", *words[:5], "--show", "--out", "here")
    table = [line for line in first.out.splitlines() if "SimCLR" in line]
    assert all(line in shown.out for line in table)
    return {"records": records, "files": files}


@case(slow=True, training=True)
def demo(place: Place) -> Any:
    answer = place.ldreg("demo", "--epochs", "2", "--out", "here")
    page = next(iter((place.folder / "here").glob("*.html")))
    numbers = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((place.folder / "here").glob("*.json"))]
    reached = [line for line in answer.out.splitlines() if "reached LID" in line]
    return {
        "files": place.tree("here"),
        "numbers": numbers,
        "reached": reached,
        "page": seen(page.read_text(encoding="utf-8"), "LDReg", "SimCLR"),
    }


@case(slow=True, training=True)
def detection(place: Place) -> Any:
    """Mask R-CNN on a few drawn squares, from a small ResNet with random weights."""
    write_squares(place, "train2017", 6)
    write_squares(place, "val2017", 3)
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=0)
    safetensors.torch.save_file(model.state_dict(), place.folder / "weights.safetensors")
    words = [
        *("--path", "coco", "--iterations", "4", "--batch_size", "2", "--train_sizes", "[96]", "--test_size", "96"),
        *("--max_size", "128", "--anchor_sizes", "[16,32]", "--precise_iterations", "2", "--workers", "0"),
        *("--device", "cpu", "--encoder.name", "test_resnet", "--size", "64", "--normalization", "imagenet"),
    ]
    place.ldreg("evaluate", "detection", "weights.safetensors", *words, "--out", "here", "--json", "found.json")
    return {"json": place.json("found.json"), "files": place.tree()}


def write_squares(place: Place, split: str, count: int) -> None:
    """Write images with one square each, in the layout of COCO."""
    draw = numpy.random.default_rng(count)
    folder = place.folder / "coco" / split
    folder.mkdir(parents=True)
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "square"}]}
    for i in range(1, count + 1):
        pixels = draw.integers(0, 60, (96, 128, 3)).astype("uint8")
        x, y, side = (int(one) for one in draw.integers((0, 0, 24), (60, 40, 48)))
        pixels[y : y + side, x : x + side] = 220
        Image.fromarray(pixels).save(folder / f"{count}{i}.png")
        content["images"].append({"id": i, "file_name": f"{count}{i}.png", "height": 96, "width": 128})
        corners = [x, y, x + side, y, x + side, y + side, x, y + side]
        box = {"bbox": [x, y, side, side], "segmentation": [corners], "area": side * side}
        content["annotations"].append({"id": i, "image_id": i, "category_id": 1, "iscrowd": 0, **box})
    file = place.folder / "coco" / "annotations" / f"instances_{split}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
