"""Embeddings in, their local and global dimensionality out."""

from ldreg.inspection.arguments import check_settings
from ldreg.inspection.interval import mean_lid
from ldreg.inspection.measure import inspect, quick_report
from ldreg.inspection.plane import principal_plane

__all__ = ["check_settings", "inspect", "mean_lid", "principal_plane", "quick_report"]
