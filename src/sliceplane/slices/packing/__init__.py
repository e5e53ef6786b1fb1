"""Which slice holds which endpoint, and the writes of a plan: packing, its order, and merging."""
