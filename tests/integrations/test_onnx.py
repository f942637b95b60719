"""Encoders as ONNX files and as programs of torch.export, beside PyTorch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.conftest import MakeRun
from torch import Tensor, nn

from ldreg.cli import main
from ldreg.encoders import EncoderConfig
from ldreg.integrations.onnx import export_encoder
from ldreg.views import Views, ViewsConfig

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
ENCODERS: list[Any] = [
    (EncoderConfig("small_cnn"), 8, 1),
    pytest.param(EncoderConfig("resnet18", stem="cifar"), 32, 3, marks=pytest.mark.slow),
    pytest.param(EncoderConfig("resnet18"), 64, 3, marks=pytest.mark.slow),
    pytest.param(EncoderConfig("vit_tiny", patch_size=4), 32, 3, marks=pytest.mark.slow),
]
each_encoder = pytest.mark.parametrize(("config", "size", "channels"), ENCODERS)


def images(count: int, size: int, channels: int) -> Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(count))


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run_session(path: Path, x: Tensor) -> Tensor:
    return torch.from_numpy(session(path).run(["representations"], {"images": x.numpy()})[0])


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To float32's rounding, which adds up over layers."""
    assert found.shape == expected.shape
    assert expected.std() > 0
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 5e-6


@each_encoder
def test_onnxruntime_finds_what_pytorch_finds(
    make_run: MakeRun, tmp_path: Path, config: EncoderConfig, size: int, channels: int
) -> None:
    run, encoder = make_run(config, size=size, channels=channels)
    made = export_encoder(run, tmp_path / "encoder.onnx")
    model = onnx.load(made.path)
    onnx.checker.check_model(model, full_check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "runs"]  # weights are inside
    for count in (1, 2, 7):
        x = images(count, size, channels)
        with torch.no_grad():
            assert_close(run_session(made.path, x), encoder(x))
    assert [made.channels, made.size, made.dimension] == [channels, size, encoder.dimension]
    assert 0 <= made.difference < 5e-6
    assert [(each.name, each.shape) for each in session(made.path).get_inputs()] == [
        ("images", ["batch", channels, size, size])
    ]
    metadata, card = json.loads(model.metadata_props[0].value), json.loads((run / "card.json").read_text())["input"]
    assert metadata["input_size"] == [channels, size, size]
    assert (metadata["mean"], metadata["std"]) == (pytest.approx(card["mean"]), pytest.approx(card["std"]))
    assert metadata["normalizes"] is False


def test_the_file_can_normalize(make_run: MakeRun, tmp_path: Path) -> None:
    run, encoder = make_run(EncoderConfig(), size=8)
    made = export_encoder(run, tmp_path / "encoder.onnx", normalize=True)
    pixels = (images(5, 8, 3) * 255).byte()
    normalized = Views(ViewsConfig(normalization="cifar"), size=8, channels=3).plain(pixels)
    x = pixels.float() / 255
    with torch.no_grad():
        assert_close(run_session(made.path, x), encoder(normalized))
        assert (encoder(x) - encoder(normalized)).abs().max() > 0.1


class Dropping(nn.Module):
    """An encoder that is another in training; `change` is made to its representations."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.dropout, self.linear, self.change = nn.Dropout(0.5), nn.Linear(12, 4), change
        self.dropout.eval()  # as its owner left it

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.linear(self.dropout(x.flatten(1))))


def test_a_module_is_written_in_eval_mode_and_left_in_its_own(tmp_path: Path) -> None:
    module = Dropping().train()
    module.linear.eval()
    before = torch.random.get_rng_state()
    made = export_encoder(module, tmp_path / "mine.onnx", size=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [part.training for part in module.modules()] == [True, True, False]
    x = images(4, 2, 3)
    with torch.no_grad():
        assert_close(run_session(made.path, x), module.eval()(x))


def deciding(x: Tensor) -> Tensor:
    """What the exporter cannot follow, because it depends on values."""
    return x * (2 if x.sum() > 0 else 1)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Dropping(), {}, "^size: expected the side"),
        (Dropping(), {"size": 2, "normalize": True}, "^normalize: expected False"),
        (Dropping().half(), {"size": 2}, "^encoder: expected weights in float32, got torch.float16"),
        (nn.Identity(), {"size": 2}, r"^encoder: expected .* a tensor \(B, D\), got shape"),
        (Dropping(Tensor.double), {"size": 2}, "^encoder: expected representations in float32, got torch.float64"),
        (Dropping(lambda x: x * torch.nan), {"size": 2}, "^encoder: expected finite .*, got NaN or inf"),
        (Dropping(deciding), {"size": 2}, r"^encoder: expected a module that torch.onnx exports, got \w+: [^\n]+$"),
        (Dropping(), {"size": 0}, "^size: expected at least 1, got 0"),
        (Dropping(), {"size": 2, "channels": -3}, "^channels: expected at least 1, got -3"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path: Path, module: nn.Module, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_encoder(module, tmp_path / "mine.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factor", [2.0, torch.nan])
def test_a_file_that_finds_something_else_is_not_written(tmp_path: Path, factor: float) -> None:
    module = Dropping(lambda x: x * (factor if torch.compiler.is_exporting() else 1.0))
    with pytest.raises(ValueError, match=r"^encoder: expected the same representations .*, got some .* away"):
        export_encoder(module, tmp_path / "mine.onnx", size=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["encoder.safetensors", "card.json", "config.yaml", "checkpoints/last.ckpt"])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("given", ["folder", "file"])
def test_what_the_encoder_is_read_from_is_not_written_over(
    make_run: MakeRun, tmp_path: Path, name: str, linked: bool, given: str
) -> None:
    run, _ = make_run(EncoderConfig(), size=8)
    (run / "config.yaml").write_text("seed: 0")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.ckpt").write_bytes(b"all")
    path, before = run / name, (run / name).read_bytes()
    if linked:
        path = tmp_path / "mine.onnx"
        path.symlink_to(run / name)
    with pytest.raises(ValueError, match=r"^cannot write '.*': it is an input, the encoder or another file of its run"):
        export_encoder(run if given == "folder" else run / "encoder.safetensors", path)
    assert (run / name).read_bytes() == before


def test_what_is_missing_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ldreg.extras._installed", lambda name: name != "onnxscript")
    assert main(["export", "absent", "--out", str(tmp_path / "mine.onnx")]) == 2
    assert 'onnxscript, which is not installed: pip install "ldreg[onnx]"' in capsys.readouterr().err


def test_the_command_says_what_it_wrote(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = make_run(EncoderConfig(), size=8, channels=1)
    for word in ("--normalize", "--normalize=true"):
        assert main(["export", str(run), "--out", str(tmp_path / "mine.onnx"), word]) == 0
        assert capsys.readouterr().out.startswith("images           float32 (batch, 1, 8, 8), from 0 to 1\n")
    assert main(["export", str(run), "--out", str(tmp_path / "mine.onnx")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "images           float32 (batch, 1, 8, 8), normalized as in card.json"
    assert lines[1] == "representations  float32 (batch, 128)"
    assert lines[-1] == f"The file is {tmp_path / 'mine.onnx'}"
    assert main(["export", str(run), "--out", str(tmp_path / "encoder.pt")]) == 2
    assert capsys.readouterr().err.endswith(".onnx\n")
    with pytest.raises(OSError, match="there is no directory"):
        export_encoder(run, tmp_path / "absent" / "mine.onnx")
