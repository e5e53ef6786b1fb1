"""The production store, registry, informers and controllers on virtual time, from one seed.

``simulation`` is the adversary: between the production parts lies a network that loses, repeats and
delays, processes crash and overlap, history is compacted, clocks differ, and people change things
at random; at every quiet point named invariants must hold. A run is one integer: the same seed
makes the same trace, byte for byte, under every PYTHONHASHSEED.

Never: a socket, a thread, a clock, or chance from anywhere but the seed.
"""
