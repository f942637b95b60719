"""Embeddings in, their local and global dimensionality out."""
