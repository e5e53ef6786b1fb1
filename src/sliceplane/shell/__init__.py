"""Everything that acts: sockets, tasks, threads, processes, clocks and logs around the cores.

Rooms, each with one story; ``server``, ``node`` and ``hosting`` know nothing of each other's insides:

- ``process``: what every program has: logs, descriptors, small HTTP pages, metrics as text, start errors.
- ``transport``: a client of any API server, and informers and Events over it.
- ``server``: the API server: storage, connections, requests, keys, audit.
- ``hosting``: controllers run over a client, embedded or beside any cluster.
- ``node``: the node proxy, and the kernel under it.
- ``tools``: what reads a cluster for one command.
"""
