"""Code that could be a library of its own: times, names, addresses, seeded randomness, back-off,
order.

Promises: pure functions and small values, no dependency on anything Kubernetes serves.
Never: imports another package of Sliceplane; reads a clock; draws randomness it was not given.
"""
