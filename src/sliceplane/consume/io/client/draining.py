"""``async with drain(client, "shop/web-0"): ...``: the block begins when no node sends new
connections to the Pod.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sliceplane.api.codec import decode
from sliceplane.api.core import Pod
from sliceplane.api.scheme import Pods
from sliceplane.consume.io.client.informer import new_rng
from sliceplane.watch.io.reflect import loop_clock

if TYPE_CHECKING:
    from sliceplane.consume.drain.answer import DrainAnswer
    from sliceplane.watch.io.base import Client


@asynccontextmanager
async def drain(
    client: Client,
    pod: str,
    *,
    timeout: float = 60.0,
    unknown: str = "wait",
    mark: bool = True,
    until_idle: bool = False,
) -> AsyncIterator[DrainAnswer]:
    """Take *pod*, ``namespace/name``, out of its Services and wait for the nodes; then the block
    may close what serves.

    A Pod that terminates needs no mark, and neither does one that something else takes out (*mark*
    false). The block begins when that is proven, or after *timeout* seconds all the same:
    ``outcome`` of what it is given says which. *unknown* is what to do about Ready nodes that tell
    nothing: ``wait``, ``fail``, ``after=10s``. *until_idle*: wait until established connections
    have ended, too.

    Raises ``ValueError``, ``StatusError`` (404: there is no such Pod) and ``Unreachable``.
    """
    from sliceplane.consume.drain.barrier import parse_policy
    from sliceplane.consume.drain.options import DrainOptions
    from sliceplane.consume.io.draining import drain_pods

    options = DrainOptions(
        timeout_s=timeout,
        unknown=parse_policy(unknown),
        mark=mark,
        digests=False,
        force=True,
        take_back=False,
        until_idle=until_idle,
    )
    namespace, _, name = pod.rpartition("/")
    if not namespace or not name:
        raise ValueError(f"no namespace/name: {pod!r}")
    target = decode(await client.get(Pods, namespace, name), Pod)
    yield await drain_pods(
        client, [target], f"pod {name}", options, clock=loop_clock(time.time()), rng=new_rng()
    )
