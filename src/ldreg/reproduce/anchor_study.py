"""Our accuracy and speed beside those of another library: lightly's recipe by lightly, by us, and ours by us."""

import statistics
from collections.abc import Mapping, Sequence

from ldreg.record import Record
from ldreg.reproduce.effects import difference, noise, sample
from ldreg.reproduce.jobs import Arm
from ldreg.reproduce.rows import Row
from ldreg.reproduce.scales import Scale
from ldreg.text import count

_OWN, _LIGHTLY = "simclr", "simclr_lightly"  # recipes


# In what our own recipes differ from lightly's and can do as it does: which parameters decay, and how encoders begin.
_AS_LIGHTLY = {"optimizer__decay_all": True, "encoder__init": "torch", "encoder__zero_init": False}
_NO_DECAY = {"optimizer__decay_all": False}
_AS_OURS = {"optimizer__decay_all": False, "encoder__init": "timm", "encoder__zero_init": True}


def rows(scale: Scale) -> list[Row]:
    """Lightly's recipe by lightly; the same by us, then nearer to ours; ours, and that nearer to lightly's.

    All have the same epochs; there are none where lightly has none.
    """
    if scale.anchor_epochs is None:
        return []
    epochs = scale.epochs or scale.anchor_epochs
    spared = "norms and biases without decay"
    own, theirs = (Arm(f"{scale.name}/{recipe}").but(schedule__epochs=epochs) for recipe in (_OWN, _LIGHTLY))
    return [
        Row(("lightly's recipe", "by lightly"), Arm(theirs.recipe, theirs.options, by="lightly")),
        Row(("lightly's recipe", "by ldreg"), theirs, baseline=0),
        Row((f"lightly's recipe, {spared}", "by ldreg"), theirs.but(**_NO_DECAY), baseline=0),
        Row((f"lightly's recipe, {spared}, timm's first weights", "by ldreg"), theirs.but(**_AS_OURS), baseline=0),
        Row(("ldreg's own recipe", "by ldreg"), own, baseline=0),
        Row(("ldreg's own recipe, lightly's decay and first weights", "by ldreg"), own.but(**_AS_LIGHTLY), baseline=0),
    ]


def in_words(scale: Scale, gathered: Mapping[Arm, Sequence[Record]]) -> str:
    """How our kNN accuracy and speed compare with lightly's, in a sentence for each recipe; empty without a pair."""
    listed = rows(scale)
    told = []
    for row in listed:
        if row.baseline is None:
            continue
        records, others = (gathered.get(arm, ()) for arm in (row.arm, listed[row.baseline].arm))
        recipe, trainer = row.names
        variant = len(row.arm.options) > 1  # in more than the epochs; it is as fast as the recipe that it varies
        parts = [part for part in (_accuracy(records, others), "" if variant else _speed(records, others)) if part]
        if parts:
            told.append(f"Beside lightly, {recipe}{',' * variant} {trainer}: {'; '.join(parts)}.")
    return " ".join(told)


def _accuracy(records: Sequence[Record], others: Sequence[Record]) -> str:
    own, base = sample(records, "knn"), sample(others, "knn")
    if not own.values or not base.values:
        return ""
    found, chance = difference(own, base), noise(own, base)
    verdict = "within noise" if abs(found) <= chance else f"{'better' if found > 0 else 'worse'} by more than noise"
    return f"kNN accuracy {round(found, 2) + 0.0:+.2f} points (noise {chance:.2f}), {verdict}"


def _speed(records: Sequence[Record], others: Sequence[Record]) -> str:
    """The ratio of medians over seeds; on different hardware it would say nothing."""
    speeds = [sample(some, "images_per_second").values for some in (records, others)]
    if not all(speeds) or not min(map(min, speeds)) > 0:
        return ""
    if len({record.origin.get("hardware") for record in (*records, *others)}) > 1:
        return "speeds cannot be compared, as they are of different hardware"
    own, base = (statistics.median(values) for values in speeds)
    workers = sorted({int(told) for record in others if (told := record.origin.get("workers")) is not None})
    loader = f", whose loader has {' or '.join(map(str, workers))} workers" if workers else ""
    medians = f"{count(round(own))} images per second to {count(round(base))} of lightly"
    return f"{own / base:.1f} times as fast (median {medians}{loader})"
