"""Multi-version storage with one revision counter, and the watch hub that fans its events out.

Promises: commits are ordered by one writer; nothing is visible to readers or watchers before the
back end said that it is durable; a list at a revision and a watch from a revision agree. Never:
opens a file or waits (``backend.py`` is the seam; the shell owns SQLite); looks into a body, with
the one exception that ``types.restamp`` is there to name.
"""
