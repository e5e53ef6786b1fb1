"""The I/O of relays: the parent, reviews of children, pass-through, and the server in front."""
