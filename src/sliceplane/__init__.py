"""Sliceplane: a Kubernetes-compatible service-discovery plane.

The packages are layers; each one's docstring says what it promises and what it must never do.
Read them in this order: kit, api, store, informer, workqueue, slices, proxy, registry, nft,
controllers, shell, cli. ``docs/architecture.md`` draws the path of the data through them.
"""
