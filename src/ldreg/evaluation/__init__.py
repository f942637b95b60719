"""What representations are worth: extraction from an encoder, k nearest neighbors, linear probes."""

from ldreg.evaluation.extract import representations
from ldreg.evaluation.knn import knn_accuracy
from ldreg.evaluation.linear import LinearResult, linear_accuracy

__all__ = ["LinearResult", "knn_accuracy", "linear_accuracy", "representations"]
