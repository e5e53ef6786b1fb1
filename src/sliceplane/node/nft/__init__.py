"""nftables rules as data: desired objects, diff against a shadow of the kernel, transactions.

``objects`` has values, commands and contents of a table, ``statements`` the parts of rules,
``names`` the names; ``layout`` is the static part, ``build`` builds a Service's objects, ``table``
owns the shadow and makes transactions (``chains``, ``slots``, ``elements`` and ``draws`` are its
parts). ``netlink`` encodes a transaction as messages for the kernel; ``listing`` compares a table
with the kernel's, ``served`` reads where it leads, ``trace`` follows a packet through it.

Promises: one atomic transaction per write, in an order the kernel accepts; kernel work in
proportion to what changed; after any history the rules mean what a fresh start would have written.
Never: runs a program, lists the kernel's tables on the hot path.
"""
