"""The API server as a process: ``plane`` puts it together; each folder is one part of it.

- ``connections``: from the listening socket to one HTTP connection, TLS included.
- ``requests``: from the head of a request to its answer.
- ``nonresource``: discovery, OpenAPI, health, version, keys: paths that are no resource.
- ``offload``: large bodies, processed by worker processes.
- ``audit``, ``metrics``, ``keys``: the audit log; metrics; certificates and tokens.
- ``storage``: back ends of ``server.store.backend``, and the committers over them.
"""
