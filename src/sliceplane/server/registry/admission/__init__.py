"""Admission: what a write needs beyond its own object (an existing namespace, a free address).

Promises: decisions against the newest staged objects; nothing is held by a write that fails.
Never: looks at who asks (that was authorization's part).
"""
