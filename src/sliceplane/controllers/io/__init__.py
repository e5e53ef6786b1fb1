"""Runs controllers in a plane, or beside any cluster.

``catalogue`` names the controllers and composes them with ``emulation``; ``embedded`` runs them in
a server's process, ``standalone`` over HTTP with a leader election. ``heuristics`` loads heuristics
of other packages; ``freshness`` and ``monitoring`` report the state of a host. The host itself is
``watch.io.hosting``.
"""
