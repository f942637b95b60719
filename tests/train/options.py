"""Options of `ldreg pretrain` in tests: sets of them, changes to a set, and the words that give them."""

from collections.abc import Mapping

# Two epochs over a folder of a few tiny images.
FOLDER = {
    "data.name": "folder",
    "data.size": "8",
    "data.workers": "0",
    "batch_size": "16",
    "schedule.epochs": "2",
    "schedule.warmup_epochs": "0",
    "ldreg.k": "4",
    "monitor.k": "4",
    "monitor.knn_k": "4",
    "monitor.every_steps": "1",
    "trainer.device": "cpu",
    "trainer.threads": "1",
}


def changed(options: Mapping[str, str], **others: str) -> dict[str, str]:
    """The options with others added or in their place; two underscores stand for the dot in a name."""
    return {**options, **{key.replace("__", "."): value for key, value in others.items()}}


def as_words(options: Mapping[str, str]) -> list[str]:
    """Each option as it is written on a command line."""
    return [word for key, value in options.items() for word in (f"--{key}", value)]
