"""nftables rules as data: desired objects, diff against a shadow of the kernel, transactions.

``objects`` has values, commands and contents of a table, ``statements`` the parts of rules,
``names`` the names; ``layout`` is the static part, ``build`` builds a Service's objects, ``table``
owns the shadow and builds transactions (``chains``, ``slots``, ``elements`` and ``buckets`` are its
parts). ``netlink`` encodes a transaction as messages for the kernel. ``listing`` compares a table
with the kernel's, ``served`` reads the targets of its destinations, ``trace`` follows a packet
through it.

Promises: one atomic transaction per write, in an order that the kernel accepts; kernel work in
proportion to the change; after any history the rules are equivalent to those of a fresh start.
Never: runs a program, lists the kernel's tables on the hot path.
"""
