"""Linear maps along the rows and columns of images, another one for every image, as two batched products."""

from torch import Tensor


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weighs images (B, C, H, W) by rows (B V, S, H) and columns (B V, T, W), giving (B V, C, S, T).

    Image b is weighed by the V maps from b V on, without being copied V times. The result lies in memory as
    (B V, S, C, T), and images that do so already are not moved: that is the order in which both products need no copy.

    >>> import torch
    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> resample(image, torch.ones(1, 1, 2), torch.eye(2)[None])  # sums over rows
    tensor([[[[4., 6.]]]])
    """
    count, channels, height, width = images.shape
    maps, size, _ = rows.shape
    lines = images.transpose(1, 2).reshape(count, height, channels * width)
    weighed = (rows.reshape(count, -1, height) @ lines).view(maps, size * channels, width)
    return (weighed @ columns.transpose(1, 2)).view(maps, size, channels, -1).transpose(1, 2)
