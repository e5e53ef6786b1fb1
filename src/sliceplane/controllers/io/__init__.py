"""Runs controllers in a plane, or beside any cluster.

``catalogue`` names the controllers and composes them with ``emulation``; ``embedded`` runs them in
a server's process, ``standalone`` over HTTP with a leader election. ``heuristics`` loads those of
other packages; ``freshness`` and ``monitoring`` report how a host is. The host itself is
``watch.io.hosting``.
"""
