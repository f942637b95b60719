"""Random views of a batch of images; each image has its own draw, on the images' device."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ldreg.views.config import NORMALIZATIONS, ViewsConfig
from ldreg.views.transforms import (
    BOX_DRAWS,
    JITTER_DRAWS,
    Boxes,
    color_jitter,
    flip,
    gaussian_blur,
    grayscale,
    kernel_size,
    resized_crop,
    sample_boxes,
    sample_jitter,
    sample_sigma,
    solarize,
)

# Uniform numbers that one view of one image takes: crop, flip, jitter, grayscale, blur and its sigma, solarize.
DRAWS = (BOX_DRAWS, 1, JITTER_DRAWS, 1, 1, 1, 1)

PADDED = 1 << 24  # pixels of images, padded to one size, that are cropped at once

Box = list[int]
"""Top, left, height and width in pixels."""


class Views:
    """Makes `count` views of every uint8 image by a policy's augmentations.

    A call maps images (B, C, H, W), or (B, V, C, size, size) if `crop` has already made the crops, to V float32
    tensors (B, C, size, size): cropped, flipped, jittered, normalized, each image of each view by its own draw. All
    randomness is one draw of uniform numbers from the generator. The rest, `render`, is a function of these numbers
    that never waits for the device. It computes in float32 also under autocast. The crop and the blur use TF32 if
    torch allows it, which is finer than the steps of uint8.

    For images of one channel, jitter is brightness and contrast only, and grayscale has no effect.

    Args:
        config: The policy and its options.
        size: Height and width of the views.
        channels: 1 or 3.

    Raises:
        ValueError: size is below 2, channels is neither 1 nor 3, or config has grayscale for one channel; in calls,
            images are not uint8 or have another shape.

    >>> views = Views(ViewsConfig("simclr"), size=8, channels=1)
    >>> images = torch.randint(256, (5, 1, 12, 10), dtype=torch.uint8)
    >>> [tuple(view.shape) for view in views(images, torch.Generator().manual_seed(0))]
    [(5, 1, 8, 8), (5, 1, 8, 8)]
    """

    def __init__(self, config: ViewsConfig, *, size: int, channels: int) -> None:
        if size < 2:
            raise ValueError(f"size: expected at least 2, got {size}")
        if channels not in (1, 3):
            raise ValueError(f"channels: expected 1 or 3, got {channels}")
        if channels == 1 and config.grayscale:
            raise ValueError(f"grayscale: expected None or 0 with images of one channel, got {config.grayscale}")
        self.config, self.size, self.channels = config, size, channels
        self.policy = config.resolve()
        self._compiled: Callable[[Tensor, Tensor], tuple[Tensor, ...]] | None = None

    @property
    def count(self) -> int:
        """V, the number of views."""
        return self.policy.count

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """The V views (B, C, size, size) of uint8 images (B, C, H, W) or (B, V, C, size, size)."""
        self._check(images)
        shape = (len(images) * self.count, sum(DRAWS))
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float32, device=images.device)
        return (self._compiled or self.render)(images, uniforms)

    def render(self, images: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """The views of images from uniforms (B V, sum(DRAWS)) in [0, 1); rows of an image's views follow each other."""
        box, mirror, jitter, gray, blur, sigma, invert = uniforms.split(DRAWS, dim=1)
        policy = self.policy
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            x = _unit(images)
            x = x.flatten(0, 1) if images.ndim == 5 else self._crop(x, box)
            if policy.flip:
                x = flip(x, mirror[:, 0] < policy.flip)
            if any(policy.jitter):
                drawn = sample_jitter(jitter, intensities=policy.jitter, probability=policy.jitter_probability)
                x = color_jitter(x, drawn)
            if policy.grayscale and self.channels == 3:
                x = grayscale(x, gray[:, 0] < policy.grayscale)
            if any(policy.blur):
                applied = happens(blur[:, 0], policy.blur)
                x = gaussian_blur(x, sample_sigma(sigma[:, 0]), applied, width=kernel_size(self.size))
            if any(policy.solarize):
                x = solarize(x, happens(invert[:, 0], policy.solarize))
            return tuple(self._normalize(view) for view in x.unflatten(0, (-1, self.count)).unbind(1))

    def compile(self, **options: Any) -> None:
        """Use `torch.compile(render, **options)` from the next call on; the random draw stays outside."""
        self._compiled = torch.compile(self.render, **options)

    def crop(self, image: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The crops (V, C, size, size) of one uint8 image (C, H, W) on the CPU, for images that differ in size.

        A call takes them, stacked to (B, V, C, size, size), in place of whole images.
        """
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2.functional import resized_crop as resized_crop_of_one

        if image.ndim != 3 or image.shape[0] != self.channels or image.dtype != torch.uint8:
            raise ValueError(f"image: expected uint8 ({self.channels}, H, W), got {_described(image)}")
        mode, size = InterpolationMode(self.policy.interpolation), [self.size, self.size]
        crops = [
            resized_crop_of_one(image, *box, size, interpolation=mode, antialias=True)
            for box in self.draw_boxes(image.shape[1], image.shape[2], generator)
        ]
        return torch.stack(crops)

    def draw_boxes(self, height: int, width: int, generator: torch.Generator | None = None) -> list[Box]:
        """The V boxes that `crop` cuts from an image of height x width."""
        uniforms = torch.rand(self.count, BOX_DRAWS, generator=generator, dtype=torch.float32)
        boxes = sample_boxes(uniforms, height=height, width=width, scale=self.policy.scale)
        return torch.stack(boxes, dim=1).tolist()

    def crop_batch(self, images: Sequence[Tensor], boxes: Sequence[list[Box]]) -> Tensor:
        """The crops (B, V, C, size, size) of uint8 images (C, H, W) of any sizes, V boxes each, on their device.

        They are rounded at the end, whereas `crop` also rounds between its two directions: values differ by at most one
        gray level. Bicubic crops may differ by more where the first direction overshoots black or white.
        """
        return torch.cat([self._crop_padded(images[start:end], boxes[start:end]) for start, end in _chunks(images)])

    def _crop_padded(self, images: Sequence[Tensor], boxes: Sequence[list[Box]]) -> Tensor:
        # Padded to one float32 (B, C, H, W), in memory as (B, H, C, W). No box reaches the padding.
        height, width = (max(image.shape[dim] for image in images) for dim in (1, 2))
        padded = images[0].new_zeros(len(images), height, images[0].shape[0], width)
        for row, image in zip(padded, images, strict=True):
            row[: image.shape[1], :, : image.shape[2]] = image.transpose(0, 1)
        corners = torch.tensor(boxes, dtype=torch.int64, device=padded.device)
        crops = resized_crop(
            padded.float().transpose(1, 2),
            Boxes(*corners.flatten(0, 1).unbind(1)),
            size=self.size,
            interpolation=self.policy.interpolation,
        )
        rounded: Tensor = crops.round_().clamp_(0, 255).to(torch.uint8)
        return rounded.view(*corners.shape[:2], *rounded.shape[1:])

    def plain(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) without augmentation: normalized float32 (B, C, size, size), for evaluation.

        The largest centered square is resized, antialiased, if it has another size.
        """
        self._check(images, cropped=False)
        side = min(images.shape[2:])
        top, left = (round((extent - side) / 2) for extent in images.shape[2:])
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            x = _unit(images[:, :, top : top + side, left : left + side])
            if side != self.size:
                mode = self.policy.interpolation
                x = functional.interpolate(x, size=(self.size, self.size), mode=mode, antialias=True).clamp(0, 1)
            return self._normalize(x)

    def _crop(self, x: Tensor, uniforms: Tensor) -> Tensor:
        boxes = sample_boxes(uniforms, height=x.shape[2], width=x.shape[3], scale=self.policy.scale)
        x = resized_crop(x, boxes, size=self.size, interpolation=self.policy.interpolation)
        # Bicubic weights overshoot; the next steps expect [0, 1].
        return x.clamp_(0, 1)

    @property
    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, for images in [0, 1]."""
        means, deviations = NORMALIZATIONS[self.config.normalization]
        return (means, deviations) if self.channels == 3 else ((fmean(means),), (fmean(deviations),))

    def _normalize(self, x: Tensor) -> Tensor:
        means, deviations = self.normalization
        # Plain numbers per channel: a tensor of them would have to be copied to the device, which waits.
        channels = zip(x.unbind(1), means, deviations, strict=True)
        return torch.stack([(channel - mean) / deviation for channel, mean, deviation in channels], dim=1)

    def _check(self, images: Tensor, *, cropped: bool = True) -> None:
        whole = images.ndim == 4 and images.shape[1] == self.channels
        crops = (self.count, self.channels, self.size, self.size)
        if images.dtype != torch.uint8 or not (whole or (cropped and images.shape[1:] == crops)):
            shapes = f"(B, {self.channels}, H, W)" + (f" or (B, {', '.join(map(str, crops))})" if cropped else "")
            raise ValueError(f"images: expected uint8 {shapes}, got {_described(images)}")

    def __getstate__(self) -> dict[str, Any]:
        # Compiled code cannot be sent to worker processes, which need only `crop`.
        return {**self.__dict__, "_compiled": None}


def _chunks(images: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Start and end of runs of images that, padded to one size, have at most PADDED pixels, or are single images."""
    start, height, width = 0, 0, 0
    for end, image in enumerate(images):
        height, width = max(height, image.shape[1]), max(width, image.shape[2])
        if end > start and (end + 1 - start) * height * width > PADDED:
            yield start, end
            start, height, width = end, image.shape[1], image.shape[2]
    yield start, len(images)


def happens(uniforms: Tensor, probabilities: tuple[float, ...]) -> Tensor:
    """Whether each event of uniforms (B V,) happens, with the v-th probability for the v-th view of an image."""
    columns = uniforms.unflatten(0, (-1, len(probabilities))).unbind(1)
    return torch.stack([column < p for column, p in zip(columns, probabilities, strict=True)], dim=1).flatten()


def _unit(images: Tensor) -> Tensor:
    """Images uint8 (..., C, H, W) as float32 in [0, 1], laid out in memory for `resample`."""
    return images.transpose(-3, -2).contiguous().float().div(255).transpose(-3, -2)


def _described(images: Tensor) -> str:
    return f"{str(images.dtype).removeprefix('torch.')} {tuple(images.shape)}"
