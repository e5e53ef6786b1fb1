"""REST semantics over the store: the meaning of get, list, create, update, patch and delete.

Request in, outcome or ``StatusError`` out, synchronously and deterministically: time and randomness
are arguments. The HTTP server, the in-process client and the simulator all call this one package.

``server.registry.registry.Registry`` is the entrance; each verb is a module of ``verbs``, and all
of them write through ``core.Core``. A write passes ``decoding`` (types, defaults), ``metadata`` and
``verbs.managed_fields``, then the rules of its kind (``kinds``: prepare, validate, admit), and ends
as one staged record made by ``documents``. Large writes run on a copy of their inputs
(``offload``).

Promises: the Status that Kubernetes returns; admission before commit; no partial effect on error.
Never: knows HTTP, waits for a disk (the caller waits until the returned revision is durable).
"""
