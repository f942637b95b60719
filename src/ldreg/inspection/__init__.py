"""Embeddings in, their local and global dimensionality out."""

from ldreg.inspection.inputs import check_settings
from ldreg.inspection.measure import inspect, quick_report

__all__ = ["check_settings", "inspect", "quick_report"]
