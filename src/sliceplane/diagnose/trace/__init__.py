"""Explains where a packet goes, and why: what a node's proxy does with a connection.

Promises: the answer is that of the production model (``consume``, ``node.nft``), run over the
objects of a cluster on a kernel of its own; reasons are read from the model's decisions, never
decided again. Only the Services that can affect the answer are modelled, so the cost of a query
depends on them, not on the cluster.

Must never: do I/O; know how objects are read (``diagnose.io.tracing`` does); change anything.
"""
