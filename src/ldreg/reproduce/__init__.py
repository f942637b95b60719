"""The paper's studies: planned, run, and written as one document."""
