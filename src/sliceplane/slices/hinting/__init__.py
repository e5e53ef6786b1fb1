"""Hints that look beyond one endpoint: by the zones' shares of CPU, and by heuristics."""
