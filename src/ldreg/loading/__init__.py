"""Reading embeddings and labels from files; nothing here runs code from a file or writes to one."""

from ldreg.loading.embeddings import load_embeddings
from ldreg.loading.labels import load_labels

__all__ = ["load_embeddings", "load_labels"]
