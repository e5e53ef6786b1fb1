"""iptables rules as data, for hosts without nft: desired chains, diff against a shadow of the
kernel, restore text.

``text`` spells names and parts of rules; ``layout`` is the static part; ``build`` turns a service's
state into chains and rules; ``table`` owns the shadow and makes transactions; ``found`` is what a
whole write has to know of the kernel.

Promises: text that ``iptables-restore --noflush`` takes, of both flavours (legacy and nf_tables);
what is written is in proportion to what changed; after any history the rules mean what a fresh
start would have written, which is what ``sliceplane.node.nft`` means. Never: runs a program,
touches chains of others.
"""
