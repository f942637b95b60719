"""Speed of pretraining on a GPU: `ldreg pretrain` on CIFAR-10 beside lightly, and ImageNet recipes on synthetic images.

    python benchmarks/gpu_pretrain.py cifar --archive cifar10-jpeg.tar.xz
    python benchmarks/gpu_pretrain.py imagenet

`cifar` runs the command itself, alternating without and with LDReg, and reads the images per second that the run
logged (medians, without the first epoch); then lightly's own CIFAR-10 SimCLR recipe (its transform, loader and loss) on
the same files. `imagenet` takes steps of the ImageNet recipes at their own batch size, or the largest half of it that
fits.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

Row = tuple[str, ...]


def cifar(archive: str, *, epochs: int, repeats: int, workers: list[int]) -> list[Row]:
    rows: list[Row] = [("what", "img/s", "ms per step of 512", "of the step without")]
    speeds: dict[str, list[float]] = {"cifar10/simclr": [], "cifar10/simclr_ldreg": []}
    for _ in range(repeats):
        for recipe, found in speeds.items():
            found.append(commanded(recipe, archive, epochs=epochs))
            print(recipe, f"{found[-1]:.0f} img/s", flush=True)
    base = statistics.median(speeds["cifar10/simclr"])
    for recipe, found in speeds.items():
        speed = statistics.median(found)
        rows.append(
            (f"ldreg pretrain --recipe {recipe}", f"{speed:.0f}", f"{512e3 / speed:.2f}", f"{base / speed:.3f}")
        )
    for count in workers:
        speed = lightly_speed(archive, workers=count)
        rows.append((f"lightly, {count} workers", f"{speed:.0f}", f"{512e3 / speed:.2f}", f"{base / speed:.3f}"))
    return rows


def commanded(recipe: str, archive: str, *, epochs: int) -> float:
    """Median images per second of one run of the command, after its first epoch."""
    from ldreg.monitor.log import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        options = {
            "recipe": recipe,
            "data.path": archive,
            "out": run,
            "schedule.epochs": epochs,
            "schedule.warmup_epochs": 1,
            "monitor.every_epochs": epochs,
        }
        words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
        subprocess.run([sys.executable, "-m", "ldreg", "pretrain", *words], check=True)
        logged = read_metrics(run / "metrics.csv")["images_per_second"]
        return statistics.median(speed for _, epoch, speed in logged if epoch > 1.5)


def lightly_speed(archive: str, *, workers: int) -> float:
    """Images per second of lightly's SimCLR recipe for CIFAR-10 with so many loader processes, bf16."""
    import timm
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    from ldreg.data import DataConfig, unpack
    from ldreg.data.config import cache_folder
    from ldreg.data.datasets import find_root

    root = find_root(unpack(Path(archive), cache_folder(DataConfig("cifar10", path=archive)))) / "train"
    transform = SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0.0)
    loader = DataLoader(
        ImageFolder(str(root), transform),
        batch_size=512,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=True,
    )
    encoder = timm.create_model("resnet18", num_classes=0)
    encoder.conv1, encoder.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model = nn.Sequential(encoder, SimCLRProjectionHead(512, 512, 128)).cuda()
    criterion, optimizer = NTXentLoss(temperature=0.5), torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
    seen, started = 0, 0.0
    for epoch in range(3):
        for (a, b), _ in loader:
            a, b = a.cuda(non_blocking=True), b.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(a), model(b))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(a)
        torch.cuda.synchronize()
        if epoch == 0:  # workers have started and kernels were chosen
            seen, started = 0, time.perf_counter()
    return seen / (time.perf_counter() - started)


def imagenet(recipes: list[str], *, steps: int, batch: int | None) -> list[Row]:
    rows: list[Row] = [("recipe", "batch", "img/s", "ms per step", "GPU memory, GB")]
    for recipe in recipes:
        for name in (recipe, f"{recipe}_ldreg"):
            rows.append(fitting(name, steps=steps, batch=batch))
            print(*rows[-1], flush=True)
    return rows


def fitting(recipe: str, *, steps: int, batch: int | None) -> Row:
    """The recipe at this batch size, or its own, or else at the largest half of it that the memory holds."""
    from ldreg.train.recipes import load_recipe
    from ldreg.train.settings import resolve

    batch = batch or resolve(load_recipe(recipe), [("data.path", "synthetic")]).run.batch_size
    while True:
        try:
            return stepped(recipe, batch, steps=steps)
        except torch.OutOfMemoryError:
            batch //= 2
        gc.collect()
        torch.cuda.empty_cache()


def stepped(recipe: str, batch: int, *, steps: int) -> Row:
    """Speed and peak memory of so many optimizer steps of a recipe on random images of 256 px."""
    from ldreg.data import ResidentImages
    from ldreg.train import run as running
    from ldreg.train.engine import quiet
    from ldreg.train.folder import create
    from ldreg.train.recipes import load_recipe
    from ldreg.train.settings import resolve

    options = {
        "data.path": "synthetic",
        "batch_size": batch,
        "schedule.epochs": 2,
        "schedule.warmup_epochs": 1,
        "monitor.every_steps": steps // 2,
        "monitor.every_epochs": 1000,
        "monitor.points": 512,
        "trainer.checkpoint_epochs": 1000,
    }
    settings = resolve(load_recipe(recipe), [(key, str(value)) for key, value in options.items()])
    pixels = torch.randint(256, (batch, 3, 256, 256), dtype=torch.uint8)
    images = ResidentImages(
        pixels.repeat(steps, 1, 1, 1)[: batch * steps // 2],
        torch.zeros(batch * steps // 2).long(),
        ["one"],
        "synthetic",
    )
    running_any: Any = running
    running_any.training_images = lambda settings: images
    running_any.held_out_images = lambda settings: None
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        made = create(Path(folder) / "run", settings.tree, command="benchmark")
        with quiet():
            built = running.build(settings, made)
            built.monitor._extract = None
            running.train(built, settings, made)
        from ldreg.monitor.log import read_metrics

        speed = read_metrics(made.metrics)["images_per_second"][-1][2]
    memory = torch.cuda.max_memory_allocated() / 1e9
    del built
    gc.collect()
    torch.cuda.empty_cache()
    return recipe, str(batch), f"{speed:.0f}", f"{1000 * batch / speed:.1f}", f"{memory:.1f}"


def table(rows: list[Row]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cifar", "imagenet"])
    parser.add_argument("--archive", default="cifar10-jpeg.tar.xz")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--workers", default="8,16")
    parser.add_argument("--recipes", default="imagenet/simclr,imagenet/byol,imagenet/simclr_vit,imagenet/mae")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int)
    given = parser.parse_args()
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    if given.what == "cifar":
        workers = [int(count) for count in given.workers.split(",") if count]
        print(table(cifar(given.archive, epochs=given.epochs, repeats=given.repeats, workers=workers)))
    else:
        print(table(imagenet(given.recipes.split(","), steps=given.steps, batch=given.batch)))


if __name__ == "__main__":
    main()
