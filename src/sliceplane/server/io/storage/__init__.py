"""Durable storage behind ``server.store.backend``, and the committer that feeds it.

Promises: a write is acknowledged and published only when it is on disk; a file that cannot be used
is left as it is and named in one sentence; one process at a time has a file. Never: decides what is
written; looks into an object's body.
"""
