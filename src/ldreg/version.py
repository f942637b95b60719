"""The version, in one place for the package, its metadata and its reports."""

__version__ = "0.1.0"
