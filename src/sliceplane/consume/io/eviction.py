"""Evictions: a deletion that PodDisruptionBudgets may delay (policy/v1, the Eviction subresource).

The server answers 429 while a budget allows no disruption; the request is repeated as ``kubectl
drain`` repeats it. A Pod that is gone, or replaced by another of its name, counts as evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Pods
from sliceplane.consume.io.drain_reporter import DrainReporter
from sliceplane.watch.io.base import Client

#: seconds between two requests; ``kubectl drain`` waits as long
EVICT_PERIOD_S: Final = 5.0
_GONE: Final = ("NotFound", "Conflict")


async def evict(
    client: Client,
    pod: Pod,
    clock: Callable[[], float],
    timeout_s: float,
    reporter: DrainReporter,
) -> str:
    """Returns the server's message if a budget refuses for *timeout_s* seconds, else "". Raises
    ``StatusError`` for other refusals, and ``Unreachable``.
    """
    until = clock() + timeout_s
    while True:
        try:
            await client.perform(_eviction(pod))
        except StatusError as error:
            if error.reason in _GONE:
                return ""
            if error.code != 429:
                raise
            if clock() + EVICT_PERIOD_S > until:
                return error.message
            reporter.on_progress(f"{pod.metadata.key}: {error.message}")
            await asyncio.sleep(EVICT_PERIOD_S)
        else:
            return ""


def _eviction(pod: Pod) -> Write:
    meta = pod.metadata
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "deleteOptions": {"preconditions": {"uid": meta.uid}},
    }
    return Write(
        verb="create",
        resource=Pods,
        namespace=meta.namespace,
        name=meta.name,
        subresource="eviction",
        body=encode(body),
    )
