"""Images by name and path, in an order that depends on (seed, epoch, rank) alone; nothing is ever downloaded."""

from ldreg.data.archives import unpack
from ldreg.data.config import DATASETS, DataConfig, worker_count
from ldreg.data.crops import RandomCrops
from ldreg.data.datasets import load_images, output_size
from ldreg.data.decoding import device_decoder
from ldreg.data.images import Batch, ImageFiles, ImageSet, ResidentImages
from ldreg.data.in_order import batches_in_order
from ldreg.data.loaders import FileLoader, Loader, ResidentLoader
from ldreg.data.order import derived_seed, epoch_order

__all__ = [
    "DATASETS",
    "Batch",
    "DataConfig",
    "FileLoader",
    "ImageFiles",
    "ImageSet",
    "Loader",
    "RandomCrops",
    "ResidentImages",
    "ResidentLoader",
    "batches_in_order",
    "derived_seed",
    "device_decoder",
    "epoch_order",
    "load_images",
    "output_size",
    "unpack",
    "worker_count",
]
