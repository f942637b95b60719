"""Embeddings in, their local and global dimensionality out."""

from ldreg.inspection.inputs import check_settings
from ldreg.inspection.interval import mean_lid
from ldreg.inspection.measure import inspect, principal_plane, quick_report

__all__ = ["check_settings", "inspect", "mean_lid", "principal_plane", "quick_report"]
