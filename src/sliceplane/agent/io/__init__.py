"""Runs an agent on a machine outside of the cluster: its checks, its child process, its socket, its
shutdown.

``program`` runs one agent over a client, with ``agent.controller`` as its core in a controller
host. ``probes`` checks a process; ``child`` starts one (``agent run``). ``control`` is the local
socket of ``agent status``, ``drain``, ``undrain`` and ``pass``. ``token`` renews the token of its
account. ``machine`` determines the identity and address of this machine. ``node_barrier`` waits
until node proxies have applied a drain.
"""
