"""The production store, registry, informers and controllers on virtual time, from one seed.

``simulation`` is the adversary. The network between the production parts loses, repeats and delays
requests, processes crash and overlap, history is compacted, clocks differ, and users make random
changes; at every quiet point named invariants must hold. One integer determines a run: the same
seed gives the same trace, byte for byte, under every PYTHONHASHSEED.

It uses no socket, no thread, no clock, and no randomness except the seed.
"""
