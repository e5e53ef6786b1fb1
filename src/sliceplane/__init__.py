"""Sliceplane: a Kubernetes-compatible service-discovery plane.

The packages are layers; each one's docstring says what it promises and what it must never do.  Read them in this order,
in which none needs one that comes later:

- what all of them know: kit, api, documents, findings;
- the state of a server and of its readers: store, informer, workqueue, flowcontrol;
- endpoints of Services: heuristics, slices, proxy, endpoints, balancing, shadow, drain, external;
- what writes and decides: registry, controllers;
- rules of a node: nft, iptables, ipvs, hns;
- names of Services, and what proxies and clients are told of them: dns, xds;
- what a gRPC server is made of: http2;
- what answers questions: tracer, endpoints_audit, drift, explain;
- what controllers were told, to be told again: recorder;
- what a browser shows of all that: page;
- what runs them, on real or on virtual time: shell, sim;
- what would happen if: whatif;
- what people and their programs begin with: client, testing, conformance, cli.

``docs/architecture.md`` draws the way of a change through them, and says where the place for something new is.
"""
