"""Completion of names of objects: a shell asks while a person types, so that the answer is quick,
or none.

The options that lead to the API server count if they stand before the word. Whatever fails
completes nothing: a shell has no place for an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import click

#: seconds that a person waits for a completion
PATIENCE_S: Final = 2.0
#: names that are listed at most
NAMES_MAX: Final = 500
#: what kubectl's users write for the kinds
_PLURALS: Final = {
    "service": "services",
    "services": "services",
    "svc": "services",
    "pod": "pods",
    "pods": "pods",
    "po": "pods",
    "node": "nodes",
    "nodes": "nodes",
    "no": "nodes",
    "deployment": "deployments",
    "deployments": "deployments",
    "deploy": "deployments",
}

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(plural: str) -> Complete:
    """Completes the name of an object of that kind."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in _listed(ctx.params, plural) if name.startswith(incomplete)]

    return complete


def kind_and_name(*kinds: str) -> Complete:
    """Completes the words ``KIND NAME`` of one argument."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        before: Sequence[str] = ctx.params.get(parameter.name or "") or ()
        if not before:
            return [kind for kind in kinds if kind.startswith(incomplete)]
        plural = _PLURALS.get(before[0])
        names = _listed(ctx.params, plural) if plural is not None and len(before) == 1 else []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _listed(flags: Mapping[str, Any], plural: str) -> list[str]:
    from sliceplane.cli.cluster import connect

    with suppress(Exception):  # no server, no right, no time: nothing is completed
        connection = connect(flags.get("kubeconfig"), flags.get("context"), announce=False)
        return asyncio.run(
            _read(connection, plural, flags.get("namespace") or connection.namespace)
        )
    return []


async def _read(connection: Any, plural: str, namespace: str) -> list[str]:
    import msgspec

    from sliceplane.api.requests import Selection
    from sliceplane.api.scheme import Deployments, Namespaces, Nodes, Pods, Services
    from sliceplane.watch.io.http.client import HttpClient

    kinds = {
        resource.plural: resource for resource in (Deployments, Namespaces, Nodes, Pods, Services)
    }
    resource = kinds[plural]
    async with asyncio.timeout(PATIENCE_S), HttpClient(connection) as client:
        page = await client.list(
            Selection(resource, namespace if resource.namespaced else ""), limit=NAMES_MAX
        )
    return [msgspec.json.decode(body)["metadata"]["name"] for body in page.items]
