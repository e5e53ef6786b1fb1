"""Admission: the needs of a write beyond its own object (an existing namespace, a free address).

Promises: decisions on the newest staged objects; a failed write allocates nothing. Never: checks
the user's rights (authorization does).
"""
