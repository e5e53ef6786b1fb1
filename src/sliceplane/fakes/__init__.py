"""Fakes with real semantics, for the tests of what follows an API server.

Promises: a fake passes the same test suite as the thing that it stands for.
Never: imported by production packages.  A plane for the tests of others is ``sliceplane.testing``.
"""
