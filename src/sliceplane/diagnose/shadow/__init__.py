"""Compares another controller's EndpointSlices with what ours would write; differences are values.

Promises: a difference is named by its kind, with both values; slice boundaries never count; the
same input gives the same differences in the same order. Never: writes, or judges which side is
right.
"""
