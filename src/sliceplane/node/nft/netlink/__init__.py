"""A ``Transaction`` as the netlink messages that the kernel takes it by, without the program
``nft`` in between.

Why: before any command ``nft`` (1.0.6) lists all chains and sets of the network namespace, so that
a change costs time in proportion to the number of Services; a message costs what it says. ``batch``
makes one batch of a transaction, which the kernel takes whole or not at all; ``containers`` has
sets, maps and elements, ``expressions`` what rules are made of, ``messages`` the form, and what the
kernel says.

Promises: what it makes gives the same ruleset, to the last detail of a listing, as ``nft -f`` of
``Transaction.render()``; what it cannot say it refuses (``Inexpressible``), and the program can do
it. Never: opens a socket (``node.io.kernel.nft_netlink`` does).

Sources: linux/netlink.h, linux/netfilter/nfnetlink.h and nf_tables.h for numbers, and what nft
1.0.6 was seen to send.
"""
