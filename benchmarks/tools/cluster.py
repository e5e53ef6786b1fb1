"""A data folder with a cluster in it, made without a network, so that a benchmark starts where its
question does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sliceplane.api.codec import decode, encode
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Nodes, Resource
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.plane import PlaneConfig, ServerPlane

#: writes that wait for one commit
TOGETHER = 500

#: what, in which namespace, the object, and its status if it is written after it
Wanted = tuple[Resource, str, dict[str, Any], dict[str, Any] | None]

#: uid by kind, namespace and name
Uids = dict[tuple[str, str, str], str]


async def populate(data_dir: Path, objects: Iterable[Wanted]) -> None:
    """Write *objects*, in order as far as kinds go, through the production registry and storage.

    References to owners and to Pods that have no uid get the one that the server assigned: with
    another one they lead nowhere, and controllers make every object anew.
    """
    uids: Uids = {}
    async with ServerPlane(PlaneConfig(data_dir=str(data_dir), secure_port=0)) as plane:
        client = plane.client("benchmark")
        batch: list[Wanted] = []
        for wanted in objects:
            if batch and (batch[-1][0] is not wanted[0] or len(batch) == TOGETHER):
                await _write(client, batch, uids)
                batch = []
            batch.append(wanted)
        await _write(client, batch, uids)


async def _write(client: InProcessClient, batch: list[Wanted], uids: Uids) -> None:
    """A Node with an empty list of taints has none: admission adds one, which a controller of a
    real cluster removes.
    """
    bodies = await asyncio.gather(
        *(
            client.create(what, where, encode(_referenced(new, where, uids)))
            for what, where, new, _ in batch
        )
    )
    for (what, where, _, _), body in zip(batch, bodies, strict=True):
        meta = decode(body, Object).metadata
        uids[what.kind, where, meta.name] = meta.uid
    untainted = encode({"spec": {"taints": None}})
    await asyncio.gather(
        *(
            client.patch(what, where, new["metadata"]["name"], untainted, patch_type="merge")
            for what, where, new, _ in batch
            if what is Nodes and new.get("spec", {}).get("taints") == []
        )
    )
    await asyncio.gather(
        *(
            client.patch(
                what,
                where,
                new["metadata"]["name"],
                encode(status),
                patch_type="merge",
                subresource="status",
            )
            for what, where, new, status in batch
            if status is not None
        )
    )


def _referenced(new: Document, namespace: str, uids: Uids) -> Document:
    """Returns *new* with the uids of the objects that it refers to."""
    references = [
        *new["metadata"].get("ownerReferences", ()),
        *(endpoint.get("targetRef", {}) for endpoint in new.get("endpoints", ())),
    ]
    for reference in references:
        if reference and "uid" not in reference:
            reference["uid"] = uids[reference["kind"], namespace, reference["name"]]
    return new
