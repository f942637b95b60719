import torch

from ldreg.views.resample import resample


def test_it_is_the_sum_over_rows_and_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, 5, 7, generator=generator, dtype=torch.float64)
    rows = torch.rand(6, 4, 5, generator=generator, dtype=torch.float64)
    columns = torch.rand(6, 3, 7, generator=generator, dtype=torch.float64)
    expected = torch.einsum("nchw,nsh,ntw->ncst", images.repeat_interleave(2, dim=0), rows, columns)
    torch.testing.assert_close(resample(images, rows, columns), expected)


def test_its_own_layout_is_not_copied() -> None:
    images = torch.rand(2, 5, 3, 7).transpose(1, 2)
    eye = torch.eye(5).expand(2, 5, 5), torch.eye(7).expand(2, 7, 7)
    result = resample(images, *eye)
    assert result.stride() == images.stride()
    assert torch.equal(result, images)
