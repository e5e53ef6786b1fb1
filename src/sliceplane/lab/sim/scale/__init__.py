"""A large cluster on virtual time (``sliceplane simulate --scale``): the parts that run, the parts
that are counted, and the first limit reached.

**Run** by the production cores: the registry with its store, one watch hub for each server with its
queues and bounds, the EndpointSlice controller behind its informers, and on a few sampled nodes the
informers, the proxy's tracker and the nftables rules; of relays the mirror with its hub, catch-ups,
the choice among parents and aggregated reports. **Counted**: the other nodes, whose streams carry
the same as those of the sampled ones. Streams that a server writes to in one batch share a queue,
since their queues are equal. Renewals of Leases are load without content, unless relays take them.

**Time** passes by the CPU cost of writes and events (``plan.Costs``), by the link of each server
and by the network's latency. ``make bench`` measures the costs; the rest follows from the decisions
of the cores.
"""
