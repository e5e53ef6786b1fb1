"""Encodes a ``Transaction`` as netlink messages for the kernel, without the program nft.

Reason: before any command nft (1.0.6) lists all chains and sets of the network namespace, so a
change costs time in proportion to the number of Services. The cost of a message is that of its own
contents. ``batch`` encodes a transaction as one atomic batch; ``containers`` has sets, maps and
elements, ``expressions`` the parts of rules, ``messages`` the format and the kernel's answers.

Promises: the messages result in the same ruleset as ``nft -f`` of ``Transaction.render()``, to the
last detail of a listing; a transaction that cannot be encoded is refused (``Inexpressible``), and
the program can write it. Never: opens a socket (``node.io.kernel.nft_netlink`` does).

Sources: linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h for numbers, and the messages
that nft 1.0.6 sends.
"""
