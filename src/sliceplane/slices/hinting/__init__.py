"""Hints that depend on more than one endpoint: by the zones' shares of CPU, and by heuristics."""
