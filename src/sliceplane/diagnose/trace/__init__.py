"""Where does this packet go, and why: an explanation of what a node's proxy does with a connection.

Promises: the answer is that of the production model (``consume``, ``node.nft``), run over the
objects of a cluster on a kernel of its own; reasons are read from what that model decided, never
decided again. Only the Services that can have a part in the answer are modelled, so a question
costs what they cost, not what the cluster costs.

Must never: do I/O; know how objects are read (``diagnose.io.tracing`` does); change anything.
"""
