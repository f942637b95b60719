"""What an encoder is worth: linear probes, kNN, fine-tuning, dimensions, transfer and detection."""

from ldreg.evaluate.extract import representations
from ldreg.evaluate.measure import LinearResult, knn_accuracy, linear_accuracy

__all__ = ["LinearResult", "knn_accuracy", "linear_accuracy", "representations"]
