"""Watching representations while they are trained: dimensions, probes, a log and a collapse alarm.

`callback.Monitor` is the Lightning callback; nothing else here knows of Lightning, so nothing is imported here.
"""
