"""REST semantics over the store: what get, list, create, update, patch and delete *mean*.

Request in, outcome or ``StatusError`` out, synchronously and deterministically: time and randomness
are arguments.  The HTTP server, the in-process client and the simulator all call this one package.

``server.registry.registry.Registry`` is the entrance; one module tells the story of each verb, and
all of them write through ``core.Core``. A write goes: ``decoding`` (types, defaults), ``metadata``
and ``managed_fields``, then what the kind says (``kinds``: what it prepares, validates and admits),
then one staged record made by ``documents``.

Promises: the Status that Kubernetes gives; admission before commit; no partial effect on error.
Never: knows HTTP, waits for a disk (the caller waits for the revision that it got to be durable).
"""
