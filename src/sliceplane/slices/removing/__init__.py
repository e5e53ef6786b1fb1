"""Removals that no Pod reported: their confirmation, and how long endpoints are retained."""
