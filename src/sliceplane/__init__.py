"""Sliceplane: a Kubernetes-compatible service-discovery plane.

The packages are layers; each one's docstring says what it promises and what it must never do.
Read them in this order: kit, api, store, informer, workqueue, heuristics, slices, endpoints, proxy, registry, nft,
controllers, shell, cli; then what stands beside them: fakes, sim, estimate, endpoints_audit; and what programs of
others import: client, testing.
``docs/architecture.md`` draws the path of the data through them.
"""
