"""Fakes and checkers with real semantics, offered to users of the library too.

Promises: a fake passes the same test suite as the thing that it stands for.
Never: imported by production packages.
"""
