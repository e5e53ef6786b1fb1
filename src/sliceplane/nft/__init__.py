"""The nftables ruleset as data: desired rules, diff against a shadow of the kernel, rendering.

Promises: one atomic transaction per change, in an order the kernel accepts; a fake kernel with the
same semantics as the real one.
Never: runs a program, lists the kernel's tables on the hot path.
"""
