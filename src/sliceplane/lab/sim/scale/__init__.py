"""A large cluster on virtual time (``sliceplane simulate --scale``): what is run, what is counted,
what breaks first.

**Run** by the production cores: the registry with its store, one watch hub a server with its queues
and bounds, the EndpointSlice controller behind its informers, and on a few sampled nodes informers,
the proxy's tracker and the rules of nftables. **Counted**: the other nodes, whose streams carry
what the sampled ones' do: those that a server writes to in one turn share a queue, as the queues of
these streams are equal. Renewals of Leases are load without content.

**Time** passes by what writes and events cost a processor (``plan.Costs``), by the link of each
server and by the network's way. The costs are measured by ``make bench``; the rest follows from
what the cores decide.
"""
