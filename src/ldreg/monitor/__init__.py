"""Measure representations during training: dimensions, probes, a log and a collapse alarm."""
