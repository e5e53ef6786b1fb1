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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

#: the version of the package; pyproject.toml, the chart and the image say the same
__version__ = "0.1.0"

__all__ = ["__version__", "client", "testing"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker must find a name that does not exist

    def __getattr__(name: str) -> Any:
        """The public packages, loaded when they are first used."""
        if name in __all__:
            from importlib import import_module

            return import_module(f"{__name__}.{name}")
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: its public names are {', '.join(__all__)}"
        )
