"""Pretraining: recipes and options to a run folder with an encoder in it."""
