"""Reads recordings: what happened, in order, and a replay of controllers on it."""
