"""iptables rules as data, for hosts without nft: desired chains, diff against a shadow of the
kernel, restore text.

``text`` has names and parts of rules; ``layout`` is the static part; ``build`` turns a Service's
state into chains and rules; ``table`` owns the shadow and builds transactions; ``saved`` parses the
rules in the kernel, which a full write needs.

Promises: text that ``iptables-restore --noflush`` of both flavours (legacy and nf_tables) accepts;
writes in proportion to the change; after any history the rules are equivalent to those of a fresh
start, and to those of ``sliceplane.node.nft``. Never: runs a program, changes chains of other
programs.
"""
