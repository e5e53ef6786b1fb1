"""Removals that no Pod reported: their confirmation, and the retention of endpoints."""
