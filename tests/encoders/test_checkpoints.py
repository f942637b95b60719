import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from ldreg.encoders import EncoderConfig, LoadedEncoder, build_encoder, load_encoder
from ldreg.encoders.checkpoints import restore
from ldreg.encoders.layouts import recognize
from ldreg.views import Views, ViewsConfig

Weights = dict[str, Tensor]


def stirred(model: nn.Module) -> nn.Module:
    """The model in eval mode with norms, biases and batch statistics other than the zeros and ones they begin with."""
    generator = torch.Generator().manual_seed(0)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


def prefixed(prefix: str, weights: Weights) -> Weights:
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def without(prefix: str, weights: Weights) -> Weights:
    return {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}


def projector(width: int) -> Weights:
    """What the authors' models have beside the encoder."""
    online = nn.Sequential(nn.BatchNorm1d(width, affine=False), nn.Linear(width, 10))
    parts = {"projector": nn.Linear(width, 8), "predictor": nn.Linear(8, 8), "online_cls": online}
    return {f"{part}.{name}": t for part, module in parts.items() for name, t in module.state_dict().items()}


@torch.no_grad()
def represented(loaded: LoadedEncoder, images: Tensor) -> Tensor:
    return cast(Tensor, loaded.module(images))


def images(size: int, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    return stirred(timm.create_model("resnet18", num_classes=10))


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(content: object, name: str = "weights.pt") -> Path:
        path = tmp_path / name
        torch.save(content, path)
        return path

    return save


Saved = Callable[[object], Path]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """What a run leaves: a small CNN for gray digits."""
    folder = tmp_path / "run"
    folder.mkdir()
    encoder = stirred(build_encoder(EncoderConfig(), channels=1, size=8))
    views = Views(ViewsConfig(normalization="cifar"), size=8, channels=1)
    mean, deviation = views.normalization
    card = {
        "encoder": asdict(EncoderConfig()),
        "input": {"channels": 1, "size": 8, "mean": mean, "std": deviation},
    }
    save_file(encoder.state_dict(), folder / "encoder.safetensors", metadata={"ldreg": json.dumps(card)})
    (folder / "card.json").write_text(json.dumps(card))
    (folder / "config.yaml").write_text("method: simclr\n")
    return folder


# the authors' layout


def resnet(name: str, *, stem: int) -> nn.Module:
    """Torchvision's model of that name without its classifier, the stem that of the authors' `c_k`."""
    model: Any = getattr(torchvision.models, name)(weights=None)
    model.fc = nn.Identity()
    if stem == 3:
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return stirred(model)


def vit(name: str, *, size: int, patch_size: int) -> nn.Module:
    return stirred(timm.create_model(name, num_classes=0, img_size=size, patch_size=patch_size))


AUTHORS: dict[str, tuple[Callable[[], nn.Module], EncoderConfig, int]] = {
    "resnet50": (lambda: resnet("resnet50", stem=7), EncoderConfig("resnet50", stem="imagenet"), 224),
    "resnet18": (lambda: resnet("resnet18", stem=3), EncoderConfig("resnet18", stem="cifar"), 32),
    "vit_tiny": (
        lambda: vit("vit_tiny_patch16_224", size=32, patch_size=8),
        EncoderConfig("vit_tiny", patch_size=8),
        32,
    ),
}


@pytest.mark.parametrize("prefix", ["encoder.", ""])
@pytest.mark.parametrize("name", AUTHORS)
def test_the_authors_encoders_give_their_representations(name: str, prefix: str, saved: Saved) -> None:
    build, config, size = AUTHORS[name]
    reference = build()
    weights = {**prefixed(prefix, reference.state_dict()), **projector(16)}
    if name == "vit_tiny":  # their class has the projector in the place of timm's head
        weights |= prefixed("head.0.", nn.Linear(192, 8).state_dict())
    loaded = load_encoder(saved(weights))
    assert (loaded.config, loaded.size, loaded.channels) == (config, size, 3)
    assert (loaded.layout, loaded.normalization) == ("authors", "none")
    with torch.no_grad():
        assert torch.equal(represented(loaded, images(size)), reference(images(size)))


@pytest.mark.parametrize("wrapped", ["model", "model_state_dict", "state_dict", None])
def test_the_online_encoder_is_taken_out_of_all_that_is_in_a_checkpoint(wrapped: str | None, saved: Saved) -> None:
    online, target = resnet("resnet18", stem=3), resnet("resnet18", stem=3).state_dict()
    weights = {
        **prefixed("target_encoder.", {name: tensor + 1 for name, tensor in target.items()}),
        **prefixed("momentum_encoder.", target),
        **prefixed("encoder.", online.state_dict()),
        **projector(512),
    }
    content: Any = prefixed("module.", weights)
    if wrapped:
        content = {"epoch": 3, wrapped: content, "optimizer": {"state": {}, "lr": 0.1}}
    loaded = load_encoder(saved(content))
    given = images(32)
    with torch.no_grad():
        assert torch.equal(represented(loaded, given), online(given))


def test_the_authors_mae_is_read_without_its_decoder(saved: Saved) -> None:
    reference = vit("vit_tiny_patch16_224", size=32, patch_size=8)
    decoder = vit("vit_tiny_patch16_224", size=32, patch_size=8).state_dict()
    beside = {
        **prefixed("decoder_", {name: decoder[name] for name in decoder if name.startswith(("blocks", "norm", "pos"))}),
        **prefixed("decoder_embed.", nn.Linear(192, 192).state_dict()),
        **prefixed("decoder_pred.", nn.Linear(192, 192).state_dict()),
        "mask_token": torch.zeros(1, 1, 192),
        **projector(192),
    }
    loaded = load_encoder(saved({"model": {**reference.state_dict(), **beside}}))
    # theirs is the one method whose images they normalize
    assert (loaded.layout, loaded.normalization) == ("authors", "imagenet")
    given = images(32)
    with torch.no_grad():
        assert torch.equal(represented(loaded, given), reference(given))


def test_what_is_no_weight_is_left_out(resnet18: nn.Module, saved: Saved) -> None:
    weights = resnet18.state_dict()
    wrapped = load_encoder(saved({"epoch": torch.tensor(3), "state_dict": weights, "best": torch.tensor(0.5)}))
    # counters of a profiler, as in the authors' code
    counters = {"layer1.0.conv1.total_ops": torch.zeros(1), "total_params": torch.zeros(1)}
    assert wrapped.key == load_encoder(saved(weights)).key == load_encoder(saved({**weights, **counters})).key


# torchvision's


@pytest.fixture
def torchvision_vit() -> nn.Module:
    model = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768
    )
    return stirred(model)


@pytest.mark.parametrize("old", [False, True], ids=["new names", "old names"])
def test_torchvision_s_vit_gives_its_representations(old: bool, torchvision_vit: nn.Module, saved: Saved) -> None:
    weights = torchvision_vit.state_dict()
    if old:  # before 0.14 the layers of the MLP had names
        weights = {k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): weights[k] for k in weights}
        assert any("linear_1" in name for name in weights)
    loaded = load_encoder(saved(weights))
    assert (loaded.layout, loaded.config) == ("torchvision", EncoderConfig("vit_tiny", patch_size=8))
    assert (loaded.size, loaded.normalization) == (32, "imagenet")
    cast(Any, torchvision_vit).heads = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(represented(loaded, images(32)), torchvision_vit(images(32)), rtol=1e-5, atol=1e-6)


# timm's


def on_meta(name: str, **options: Any) -> Weights:
    """Names and shapes of a timm model's weights."""
    with torch.device("meta"):
        return timm.create_model(name, **options).state_dict()


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"])
def test_resnets_are_told_by_their_weights(name: str) -> None:
    told = recognize(on_meta(name, in_chans=1), encoder=None, channels=None, size=None)
    assert told == (EncoderConfig(name, stem="imagenet"), 1, 224)
    assert recognize(on_meta(name), encoder=None, channels=None, size=64)[2] == 64


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("vit_tiny_patch16_224", {}, (EncoderConfig("vit_tiny", patch_size=16), 3, 224)),
        ("vit_small_patch32_384", {}, (EncoderConfig("vit_small", patch_size=32), 3, 384)),
        ("vit_base_patch16_224", {"img_size": 96, "patch_size": 12}, (EncoderConfig("vit_base", patch_size=12), 3, 96)),
        ("vit_large_patch16_224", {"in_chans": 1}, (EncoderConfig("vit_large_patch16_224", patch_size=16), 1, 224)),
    ],
)
def test_vits_are_told_by_their_weights(name: str, options: dict[str, Any], expected: object) -> None:
    assert recognize(on_meta(name, **options), encoder=None, channels=None, size=None) == expected


@pytest.mark.parametrize("name", ["wide_resnet50_2", "resnext50_32x4d", "resnet50d", "vit_huge_patch14_224"])
def test_an_encoder_that_cannot_be_told_has_to_be_named(name: str) -> None:
    weights = on_meta(name)
    with pytest.raises(ValueError, match=r"\d+ tensors .*--encoder"):
        recognize(weights, encoder=None, channels=None, size=None)
    assert recognize(weights, encoder=EncoderConfig(name), channels=None, size=None)[1:] == (3, 224)


def test_any_timm_model_loads_by_its_name(saved: Saved) -> None:
    model: Any = stirred(timm.create_model("convnext_atto", num_classes=5))
    loaded = load_encoder(saved(model.state_dict()), encoder=EncoderConfig("convnext_atto"))
    assert (loaded.size, loaded.channels, loaded.layout) == (224, 3, "timm")
    with torch.no_grad():  # its head keeps a norm, which is the encoder's
        reference = model.forward_head(model.forward_features(images(64)), pre_logits=True)
        assert torch.equal(represented(loaded, images(64)), reference)


def test_the_module_is_ready_for_use(resnet18: nn.Module, saved: Saved) -> None:
    full = without("fc.", resnet18.state_dict())
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in full.items()}
    # files older than the counter of batches lack it
    old = {name: tensor for name, tensor in half.items() if not name.endswith("num_batches_tracked")}
    for weights in (half, old):
        state = torch.get_rng_state()
        loaded = load_encoder(saved(weights), normalization="half")
        assert torch.equal(torch.get_rng_state(), state)
        assert not loaded.module.training
        assert loaded.module.dimension == 512
        assert loaded.normalization == "half"
        for name, tensor in loaded.module.state_dict().items():
            assert tensor.device.type == "cpu"
            assert tensor.dtype == (torch.int64 if name.endswith("tracked") else torch.float32)
            assert name not in weights or torch.equal(tensor, weights[name].to(tensor.dtype))


def test_a_small_cnn_needs_a_size(saved: Saved) -> None:
    path = saved(build_encoder(EncoderConfig(), channels=1, size=8).state_dict())
    with pytest.raises(ValueError, match=r"weights.pt: size: "):
        load_encoder(path, encoder=EncoderConfig())
    loaded = load_encoder(path, encoder=EncoderConfig(), size=8)
    assert (loaded.layout, loaded.channels, loaded.size) == ("ldreg", 1, 8)


# runs


def test_a_run_folder_and_its_encoder_are_the_same(run_folder: Path, tmp_path: Path) -> None:
    folder, file = load_encoder(run_folder), run_folder / "encoder.safetensors"
    assert (folder.config, folder.channels, folder.size) == (EncoderConfig(), 1, 8)
    assert (folder.normalization, folder.layout) == ("cifar", "ldreg")
    alone = tmp_path / "renamed.safetensors"
    alone.write_bytes(file.read_bytes())
    assert folder.key == load_encoder(str(file)).key == load_encoder(alone).key
    expected = stirred(build_encoder(EncoderConfig(), channels=1, size=8))
    assert folder.module.state_dict().keys() == expected.state_dict().keys()
    save_file(folder.module.state_dict(), file)  # the card beside stands for one inside
    assert load_encoder(run_folder).key == folder.key
    file.unlink()
    with pytest.raises(ValueError, match=f"ldreg pretrain --resume {run_folder}"):
        load_encoder(run_folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoder": EncoderConfig("resnet18")}, r"encoder.name: expected small_cnn, .*got resnet18"),
        ({"channels": 3}, "channels: expected 1, .*got 3"),
        ({"size": 32}, "size: expected 8, .*got 32"),
        ({"normalization": "imagenet"}, "normalization: expected cifar, .*got imagenet"),
    ],
)
def test_arguments_against_the_card_are_refused(given: dict[str, Any], message: str, run_folder: Path) -> None:
    with pytest.raises(ValueError, match=rf"encoder.safetensors: {message}"):
        load_encoder(run_folder, **given)
    assert load_encoder(run_folder, encoder=EncoderConfig(), channels=1, size=8, normalization="cifar").size == 8


def carded(path: Path, weights: Weights, encoder: dict[str, Any]) -> Path:
    """The file of an encoder whose card has these settings of it."""
    card = {"encoder": encoder, "input": {"channels": 3, "size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}}
    save_file(weights, path, metadata={"ldreg": json.dumps(card)})
    return path


def test_how_an_encoder_began_is_nothing_of_the_trained_one(tmp_path: Path) -> None:
    """Neither the key of its representations nor what may be said of it depends on that."""
    config = EncoderConfig("resnet18", stem="cifar")
    weights = build_encoder(config, channels=3, size=32).state_dict()
    path = carded(tmp_path / "e.safetensors", weights, {"name": "resnet18", "stem": "cifar", "drop_path": 0.1})
    assert load_encoder(path, encoder=EncoderConfig("resnet18")).config.drop_path == 0.1
    others: tuple[dict[str, Any], ...] = ({"stem": "imagenet"}, {"drop_path": 0.2})
    for other in others:
        with pytest.raises(
            ValueError, match=rf"encoder.{next(iter(other))}: expected (cifar|0\.1), .*got (imagenet|0\.2)"
        ):
            load_encoder(path, encoder=EncoderConfig("resnet18", **other))
    keys = set()
    for began in ({}, {"init": "timm", "zero_init": True}, {"init": "torch", "zero_init": False}):
        path = carded(tmp_path / "e.safetensors", weights, {"name": "resnet18", "stem": "cifar", **began})
        keys |= {load_encoder(path).key, load_encoder(path, encoder=replace(config, init="torch")).key}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("part", "change", "detail"),
    [
        (None, {"input": None}, "subscriptable"),
        (None, {"encoder": None}, "must be a mapping"),
        ("encoder", {"depth": 3}, "unexpected keyword argument 'depth'"),
        ("encoder", {"name": "nothing"}, "name: expected small_cnn"),
        ("input", {"mean": [0.1]}, "normalization"),
        ("input", {"size": 0}, "got size 0"),
        ("input", {"size": "8"}, "got size '8'"),
        ("input", {"size": 10**9}, "got size 1000000000"),
        ("input", {"channels": 10**9, "mean": [0.5], "std": [0.5]}, "got channels 1000000000"),
    ],
)
def test_a_card_that_no_run_writes_is_refused(
    part: str | None, change: dict[str, Any], detail: str, run_folder: Path
) -> None:
    card = json.loads((run_folder / "card.json").read_text())
    (card[part] if part else card).update(change)
    weights = load_encoder(run_folder).module.state_dict()
    for text, said in ((json.dumps(card), detail), ("{", ""), ("{}", "'encoder' is missing")):
        save_file(weights, run_folder / "encoder.safetensors", metadata={"ldreg": text})
        with pytest.raises(ValueError, match=r"encoder.safetensors: expected the card of an ldreg run") as caught:
            load_encoder(run_folder)
        assert said in str(caught.value)


# keys


def test_the_key_is_of_the_weights_and_of_what_is_said(saved: Any, tmp_path: Path) -> None:
    config = EncoderConfig("test_resnet")
    headed = stirred(timm.create_model("test_resnet", num_classes=10)).state_dict()
    weights = without("fc.", headed)
    save_file(weights, tmp_path / "same.safetensors")
    path = saved(weights)
    key = load_encoder(path, encoder=config).key
    assert len(key) == 64
    assert key == load_encoder(tmp_path / "same.safetensors", encoder=config).key
    assert key == load_encoder(saved(prefixed("module.", headed), "headed.pth"), encoder=config).key
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    changed["layer4.0.conv2.weight"][3, 2, 1, 0] += 1e-6
    others = [
        load_encoder(saved(changed, "changed.pt"), encoder=config).key,
        load_encoder(path, encoder=config, size=64).key,
        load_encoder(path, encoder=config, normalization="none").key,
        load_encoder(path, encoder=replace(config, drop_path=0.5)).key,
    ]
    assert len({key, *others}) == 5


# what does not fit


def test_what_does_not_fit_is_named(resnet18: nn.Module, saved: Saved) -> None:
    weights = resnet18.state_dict()
    del weights["layer2.0.conv1.weight"], weights["bn1.bias"]
    weights["layer9.weight"] = torch.zeros(1)
    weights["layer3.0.conv1.weight"] = torch.zeros(4, 4, 3, 3)
    weights["conv1.weight"] = torch.zeros(64, 3, 7, 7, dtype=torch.int8)
    weights["bn1.weight"] = torch.zeros(64).to_sparse()
    with pytest.raises(ValueError, match=r"weights.pt: does not fit resnet18: ") as caught:
        load_encoder(saved(weights))
    told = str(caught.value)
    assert "keys missing: 2 (bn1.bias; layer2.0.conv1.weight)" in told
    assert "keys unexpected: 1 (layer9.weight)" in told
    assert "shapes that differ: 1 (layer3.0.conv1.weight: expected (256, 128, 3, 3), found (4, 4, 3, 3))" in told
    assert "types that differ: 2 (conv1.weight: expected float32, found int8; bn1.weight: expected dense" in told
    assert "\n" not in told


def test_weights_are_put_back_into_an_encoder(run_folder: Path) -> None:
    file = run_folder / "encoder.safetensors"
    expected = load_encoder(run_folder).module.state_dict()
    module = build_encoder(EncoderConfig("small_cnn"), channels=1, size=8)
    restore(module, file, name="small_cnn")
    assert all(torch.equal(value, expected[key]) for key, value in module.state_dict().items())
    other = build_encoder(EncoderConfig("small_cnn"), channels=3, size=8)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: does not fit small_cnn"):
        restore(other, file, name="small_cnn")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: cannot be read as a safetensors file"):
        restore(module, file, name="small_cnn")


def spoiled(weights: Weights, value: float) -> Weights:
    copy = {name: tensor.clone() for name, tensor in weights.items()}
    copy["layer2.1.bn2.running_var"][7] = value
    return copy


def test_arguments_parts_and_values_that_do_not_fit_are_named(resnet18: nn.Module, saved: Saved) -> None:
    resnet, tiny = resnet18.state_dict(), vit("vit_tiny_patch16_224", size=32, patch_size=8).state_dict()
    pooled = {re.sub(r"^norm\.", "fc_norm.", name): tensor for name, tensor in tiny.items()}
    cases: tuple[tuple[Weights, dict[str, Any], str], ...] = (
        ({**prefixed("encoder.", resnet), "adapter.weight": torch.zeros(1)}, {}, "1 keys 'adapter.weight'"),
        (pooled, {}, r"keys missing: 2 \(norm.weight.*keys unexpected: 2 \(fc_norm.weight"),
        (resnet, {"encoder": EncoderConfig("resnet50")}, r"resnet50: keys missing: \d+ \(.*; .*; .*; \d+ more\)"),
        (resnet, {"channels": 1}, "channels: expected 3, .*got 1"),
        (resnet, {"size": 100_000}, "size: .*100000"),
        (tiny, {"size": 64}, "size: expected 32, .*got 64"),
        (without("pos_embed", tiny), {"encoder": EncoderConfig("vit_tiny"), "size": 30}, "patch_size: .*30"),
        (spoiled(resnet, float("nan")), {}, "expected finite .* layer2.1.bn2.running_v"),
        (spoiled(resnet, float("inf")), {}, "expected finite .* layer2.1.bn2.running_v"),
    )
    for weights, given, message in cases:
        with pytest.raises(ValueError, match=rf"weights.pt: .*{message}"):
            load_encoder(saved(weights), **given)
    with pytest.raises(ValueError, match=r"^normalization: .*'gray'"):
        load_encoder(saved(resnet), normalization=cast(Any, "gray"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "expected a state dict of names and tensors, got a Tensor"),
        ([torch.zeros(3)], "expected a state dict of names and tensors, got a list"),
        ({}, "expected a state dict of names and tensors, got an empty dict"),
        ({"state": {}, "param_groups": []}, "got a dict of 'state', 'param_groups'"),
        ({"model": {"epoch": 3}}, "got a dict of 'epoch'"),
        ({"model": {"a": torch.zeros(1)}, "state_dict": {"a": torch.zeros(1)}}, "got several: 'state_dict', 'model'"),
        ({"embeddings": torch.zeros(5, 2)}, "usual ResNet or ViT, got 1 tensors 'embeddings'"),
        (b"conv1.weight 1 2 3", "it holds text"),
        (None, "No such file"),
    ],
    ids=str,
)
def test_what_is_no_state_dict_is_told_in_one_line(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises((ValueError, OSError)) as caught:
        load_encoder(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_and_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    (tmp_path / "whole.ckpt").write_text("x")
    with pytest.raises(ValueError, match=r"whole.ckpt: .*expected one of .pt .pth .safetensors"):
        load_encoder(tmp_path / "whole.ckpt")
    with pytest.raises(ValueError, match=r"expected a run folder with an encoder.safetensors"):
        load_encoder(tmp_path)
