"""What representations are worth: extraction from an encoder, k nearest neighbors, linear probes."""

from ldreg.evaluate.extract import representations
from ldreg.evaluate.measure import LinearResult, knn_accuracy, linear_accuracy

__all__ = ["LinearResult", "knn_accuracy", "linear_accuracy", "representations"]
