"""Where another controller's EndpointSlices differ from what ours would write, as values.

Promises: a difference is named by its kind, with both values; slice boundaries never count; the
same input gives the same differences in the same order. Never: writes, or judges which side is
right.
"""
