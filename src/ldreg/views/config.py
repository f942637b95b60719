"""The published augmentation policies, and the options that change them."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

PolicyName = Literal["simclr", "byol", "mae"]
Interpolation = Literal["bilinear", "bicubic"]
Normalization = Literal["imagenet", "cifar", "half", "none"]

# Mean and standard deviation of red, green and blue; one-channel images take the average of the three.
NORMALIZATIONS: dict[Normalization, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True)
class Policy:
    """All values of a policy.

    `scale` is the range of the share of the area that a crop keeps, `jitter` the intensities of brightness, contrast,
    saturation and hue; `blur` and `solarize` have one probability per view.
    """

    scale: tuple[float, float]
    interpolation: Interpolation
    flip: float
    jitter: tuple[float, float, float, float]
    jitter_probability: float
    grayscale: float
    blur: tuple[float, ...]
    solarize: tuple[float, ...]

    @property
    def count(self) -> int:
        """The number of views."""
        return len(self.blur)


# The paper's appendix "Experimental Settings": Tables tab:simclr_aug and tab:byol_aug. MAE's is that of He et al.,
# "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, appendix A.1.
POLICIES: dict[PolicyName, Policy] = {
    "simclr": Policy(
        (0.08, 1.0), "bilinear", 0.5, (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, blur=(0.5, 0.5), solarize=(0.0, 0.0)
    ),
    "byol": Policy((0.08, 1.0), "bilinear", 0.5, (0.4, 0.4, 0.2, 0.1), 0.8, 0.2, blur=(1.0, 0.1), solarize=(0.0, 0.2)),
    "mae": Policy((0.2, 1.0), "bicubic", 0.5, (0.0, 0.0, 0.0, 0.0), 0.0, 0.0, blur=(0.0,), solarize=(0.0,)),
}


@dataclass(frozen=True)
class ViewsConfig:
    """Augmentations of the views; an option of None takes the policy's value.

    Args:
        policy: The published policy: simclr and byol (also SimCLR-Tuned's) make two views, mae one.
        jitter: Strength that multiplies the policy's four color-jitter intensities, 0 for none; default 1.
        flip: Probability of a horizontal flip.
        min_scale: Smallest share of the image's area that a crop keeps; default 0.08 for simclr and byol, 0.2 for mae.
        max_scale: Largest share of the image's area that a crop keeps.
        grayscale: Probability of taking the color out; default 0.2 for simclr and byol, 0 for mae.
        blur: Whether to blur, with the policy's probability; default true for simclr and byol, false for mae.
        normalization: Mean and standard deviation of the last step: imagenet, cifar, half (0.5 and 0.5) or none.
        interpolation: Interpolation of the crop; default bilinear for simclr and byol, bicubic for mae.

    Raises:
        ValueError: a value is out of range, or the policy has no such augmentation.

    >>> ViewsConfig("simclr", jitter=0.5).resolve().jitter
    (0.4, 0.4, 0.4, 0.1)
    >>> ViewsConfig("mae", jitter=0.5)
    Traceback (most recent call last):
    ValueError: jitter: expected None or 0 as policy 'mae' has no color jitter, got 0.5
    """

    policy: PolicyName = "simclr"
    jitter: float | None = None
    flip: float = 0.5
    min_scale: float | None = None
    max_scale: float = 1.0
    grayscale: float | None = None
    blur: bool | None = None
    normalization: Normalization = "imagenet"
    interpolation: Interpolation | None = None

    def __post_init__(self) -> None:
        _one_of("policy", self.policy, get_args(PolicyName))
        _one_of("normalization", self.normalization, get_args(Normalization))
        _one_of("interpolation", self.interpolation, (None, *get_args(Interpolation)))
        _within("flip", self.flip, 0, 1)
        _within("grayscale", self.grayscale, 0, 1)
        if not 0 < self.max_scale <= 1:
            raise ValueError(f"max_scale: expected above 0 and at most 1, got {self.max_scale}")
        if self.min_scale is not None and not 0 < self.min_scale <= self.max_scale:
            raise ValueError(
                f"min_scale: expected above 0 and at most max_scale {self.max_scale}, got {self.min_scale}"
            )
        policy = POLICIES[self.policy]
        if policy.scale[0] > self.max_scale and self.min_scale is None:
            raise ValueError(f"max_scale: expected at least the policy's min_scale, got {self.max_scale}")
        for name, value, present, what in (
            ("jitter", self.jitter, any(policy.jitter), "color jitter"),
            ("grayscale", self.grayscale, policy.grayscale, "grayscale"),
            ("blur", self.blur, any(policy.blur), "blur"),
        ):
            if value and not present:
                off = "False" if name == "blur" else "0"
                raise ValueError(f"{name}: expected None or {off} as policy {self.policy!r} has no {what}, got {value}")
        if hue := policy.jitter[3]:  # hue turns by at most half the circle, either way
            _within("jitter", self.jitter, 0, 0.5 / hue)

    def resolve(self) -> Policy:
        """The policy with these options applied."""
        own = POLICIES[self.policy]
        strength = 1.0 if self.jitter is None else self.jitter
        brightness, contrast, saturation, hue = own.jitter
        return replace(
            own,
            scale=(own.scale[0] if self.min_scale is None else self.min_scale, self.max_scale),
            interpolation=self.interpolation or own.interpolation,
            flip=self.flip,
            jitter=(brightness * strength, contrast * strength, saturation * strength, hue * strength),
            grayscale=own.grayscale if self.grayscale is None else self.grayscale,
            blur=(0.0,) * own.count if self.blur is False else own.blur,
        )


def _one_of(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def _within(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise ValueError(f"{name}: expected between {least:g} and {most:g}, got {value}")
