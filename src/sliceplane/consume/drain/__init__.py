"""The drain barrier: when does no node send new connections to a Pod any more? A core:
``consume.io.drain_barrier`` and ``controllers.drained`` feed it.

``departure`` follows the slices: from which version on none of them has the Pod used. ``barrier``
compares that with what the nodes tell that their kernels hold, and names those that are missing.
``impact`` counts the ready endpoints that Services keep. ``idle`` waits for established
connections, too, if that is wanted. ``answer`` has the values, and ``text`` words them.

Promises: "drained" means that every node that must be heard holds, in its kernel, a version from
which on no slice has kernels use the Pod. A node that does not tell is *unknown*, never done.
Never: guesses by time that a node has followed; speaks, without ``idle``, of connections that are
already open.
"""
