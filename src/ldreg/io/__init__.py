"""Reading embeddings, labels, tables and torch files, and writing files; code in a file is never run."""
