"""Packing of endpoints into slices, the order of a plan's writes, and merging."""
