"""The nftables ruleset as data: desired objects, diff against a shadow of the kernel, rendering.

``objects`` has the values, ``statements`` what rules are made of, ``names`` the names; ``layout``
is the static part; ``build`` turns a service's state into desired objects; ``table`` owns the
shadow and makes transactions, ``elements`` what of it is in sets and maps (``node.plane`` tells
them what is desired). ``netlink`` says a transaction in messages for the kernel; ``contents`` is
what a table consists of, ``trace`` sends packets through it.

Promises: one atomic transaction per write, in an order the kernel accepts; kernel work in
proportion to what changed; after any history the rules mean what a fresh start would have written.
Never: runs a program, lists the kernel's tables on the hot path.
"""
