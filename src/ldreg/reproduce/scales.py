"""The three sizes at which the studies can be run: the paper's own, CIFAR-10 on one GPU, digits on a CPU."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ldreg.data import DataConfig
from ldreg.reproduce.jobs import Arm

ScaleName = Literal["imagenet", "cifar10", "digits"]


@dataclass(frozen=True)
class Scale:
    """What of the studies depends on their size.

    Args:
        name: also the folder of its recipes
        k: neighbors of LID in tables, and those that LDReg usually has
        long_epochs: of the longer pretraining in the tables of transfer and detection
        long_batch: images of a batch there
        batches: sizes compared, with the k of each, which shrinks at the same rate
        betas: of LDReg's ablation
        neighbors: k of LDReg's ablation
        jitters: strengths of color jitter compared
        targets: LIDs that LDReg is told to approach, one below and one above what SimCLR has by itself
        queues: numbers of past representations that LDReg seeks neighbors in beside the batch
        search_epochs: of the runs that beta and k are chosen by, where no other number is given
        anchor_epochs: of lightly's recipe and ours beside it, where no other number is given; None: there are none
        datasets: of the transfer table; those that need no path are part of `all` without being asked for
        linear: protocol of the linear evaluation that tables report
        transfer: protocol of the transfer table
    """

    name: ScaleName
    k: int
    long_epochs: int
    long_batch: int
    batches: tuple[tuple[int, int], ...]
    betas: tuple[float, ...]
    neighbors: tuple[int, ...]
    jitters: tuple[float, ...]
    targets: tuple[float, ...]
    queues: tuple[int, ...]
    search_epochs: int
    anchor_epochs: int | None
    datasets: tuple[str, ...]
    linear: Literal["fast", "imagenet"]
    transfer: Literal["fast", "transfer"]
    epochs: int | None = None  # of every run; None: as the recipes say

    def with_epochs(self, epochs: int) -> "Scale":
        """The same with so many epochs of every run; a long pretraining is as many times longer as before."""
        usual = self.epochs or 100
        return replace(self, epochs=epochs, long_epochs=round(epochs * self.long_epochs / usual))

    def arm(self, recipe: str) -> Arm:
        """The recipe of this scale with this name."""
        arm = Arm(f"{self.name}/{recipe}")
        return arm if self.epochs is None else arm.but(schedule__epochs=self.epochs)

    def long(self, recipe: str) -> Arm:
        """The same, trained longer."""
        if self.name == "imagenet":  # it has recipes of its own, with the learning rate of that batch
            arm = Arm(f"imagenet/{recipe.replace('simclr', 'simclr_bs4096_e1000')}")
            return arm if self.epochs is None else arm.but(schedule__epochs=self.long_epochs)
        arm = self.arm(recipe).but(schedule__epochs=self.long_epochs)
        return arm if self.long_batch == self.batches[-1][0] else arm.but(batch_size=self.long_batch)

    def batch(self, size: int, k: int, *, ldreg: bool) -> Arm:
        """SimCLR with another batch size, and LDReg's k with it."""
        recipe = "simclr_ldreg" if ldreg else "simclr"
        if size == self.batches[-1][0]:
            return self.arm(recipe)
        arm = self.arm(recipe).but(batch_size=size)
        return arm.but(ldreg__k=k) if ldreg else arm


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            "imagenet",
            k=64,
            long_epochs=1000,
            long_batch=4096,
            batches=((512, 16), (1024, 32), (2048, 64)),
            betas=(0.001, 0.005, 0.01, 0.05, 0.1),
            neighbors=(16, 32, 64, 128),
            jitters=(0.25, 0.5, 0.75, 1.0),
            targets=(15.0, 30.0),
            queues=(4096, 16384, 65536),
            search_epochs=50,
            anchor_epochs=None,
            datasets=("imagenet", "food101", "cifar10", "cifar100", "birdsnap", "cars", "dtd"),
            linear="imagenet",
            transfer="transfer",
        ),
        Scale(
            "cifar10",
            k=64,
            long_epochs=200,
            long_batch=512,
            batches=((128, 16), (256, 32), (512, 64)),
            betas=(0.001, 0.01, 0.1, 1.0),
            neighbors=(16, 32, 64, 128),
            jitters=(0.125, 0.25, 0.5, 1.0),
            targets=(10.0, 20.0),
            queues=(1024, 4096, 16384),
            search_epochs=20,
            anchor_epochs=30,
            datasets=("cifar10", "digits", "shapes", "textures"),
            linear="fast",
            transfer="fast",
        ),
        Scale(
            "digits",
            k=32,
            long_epochs=160,
            long_batch=256,
            batches=((64, 8), (128, 16), (256, 32)),
            betas=(0.01, 0.1, 0.5, 1.0),
            neighbors=(8, 16, 32, 64),
            jitters=(0.0, 0.25, 0.5, 1.0),
            targets=(5.0, 10.0),
            queues=(512, 1024),
            search_epochs=40,
            anchor_epochs=None,
            datasets=("digits", "shapes", "textures"),
            linear="fast",
            transfer="fast",
            epochs=40,
        ),
    )
}


def dataset(name: str, paths: Mapping[str, str], *, size: int | None = None) -> DataConfig:
    """The images of this name, at the path given for it."""
    return DataConfig(name=name, path=paths.get(name), size=size)
