"""Runs an agent on a machine outside of the cluster: its checks, its child, its socket, its end.

``program`` runs one agent over a client, with ``agent.controller`` as its core and the host of
controllers as its ways; ``probes`` looks at a process; ``child`` starts one (``agent run``);
``control`` is the local socket of ``agent status``, ``drain``, ``undrain`` and ``pass``; ``token``
renews what its account was given; ``machine`` knows whose machine this is, and its address;
``following`` finds out whether node proxies have followed a drain.
"""
