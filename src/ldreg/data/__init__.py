"""Images by name and path, in an order that depends only on (seed, epoch, rank); nothing is downloaded."""

from ldreg.data.archives import unpack
from ldreg.data.config import DATASETS, DataConfig, worker_count
from ldreg.data.datasets import load_images, output_size
from ldreg.data.decoding import device_decoder
from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages, derived_seed, epoch_order
from ldreg.data.loaders import Loader, batches_in_order

__all__ = [
    "DATASETS",
    "Batch",
    "DataConfig",
    "ImageFiles",
    "ImageSet",
    "Loader",
    "ResidentImages",
    "batches_in_order",
    "derived_seed",
    "device_decoder",
    "epoch_order",
    "load_images",
    "output_size",
    "unpack",
    "worker_count",
]
