"""Reading embeddings and labels from files; nothing here runs code from a file or writes to one."""

from ldreg.io.embeddings import load_embeddings, table_columns
from ldreg.io.labels import label_arrays, load_labels

__all__ = ["label_arrays", "load_embeddings", "load_labels", "table_columns"]
