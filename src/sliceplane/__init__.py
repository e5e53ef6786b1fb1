"""Sliceplane: a Kubernetes-compatible service-discovery plane.

The rooms are layers; each one's docstring says what it promises and what it must never do. Read
them in this order, in which none needs one that comes later:

- what all of them know: kit, api;
- a client of any API server, and what its readers share: watch, consume;
- the state of a server, and the slices of a Service: server, slices;
- workloads that are played: emulation;
- programs beside a server: node, dns, xds, agent, relay;
- what writes: controllers;
- what answers questions: diagnose;
- what is only played: lab;
- what people begin with: cli.

Programs of others import ``sliceplane.client`` and ``sliceplane.testing``.

``docs/architecture.md`` draws the way of a change through them, and says where the place for
something new is.
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
            f"module {__name__!r} has no attribute {name!r}: its public names are "
            f"{', '.join(__all__)}"
        )
