"""The ``preStop`` hook: a node proxy answers the kubelet's hook instead of the Pod, when no node
sends to it any more.

::

    metadata: {annotations: {sliceplane.dev/drain-barrier: "true"}}
    spec: {containers: [{lifecycle: {preStop: {httpGet: {port: 10261, path: /drain}}}}]}

The kubelet calls the Pod's own address from the host's namespace
(``pkg/kubelet/lifecycle/handlers.go``). A rule in the output hook redirects that port of local Pods
that opted in to a loopback port of ours, and the original destination identifies the Pod. The proxy
answers when the controllers' leader has written the condition ``sliceplane.dev/Drained``, which it
observes by its watch of the node's Pods; or after ``?timeout=`` seconds.

It waits for the end of new connections. With ``?idle=`` it waits up to that many further seconds,
until this node tracks no TCP connection to the Pod: the application, or its clients, end the open
ones.

A hook never fails. It may arrive before any slice shows that the Pod terminates; then it waits for
that, too. The rules are removed at the end, so that calls for a Pod do not reach another program of
the host.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sliceplane.api.core import Pod
from sliceplane.api.discovery import ANNOTATION_DRAIN_BARRIER
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Pods
from sliceplane.consume.drain.answer import CONDITION
from sliceplane.kit.io.door import Door, GuardedPort
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.pages import PageError
from sliceplane.kit.ip import Family, parse_strict
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.backend import AnyBackend, KernelError
from sliceplane.node.io.kernel.conntrack import Conntrack, ConntrackError
from sliceplane.node.io.kernel.netns import Listen
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.reflect import RunningInformer

if TYPE_CHECKING:
    from aiohttp import web

TIMEOUT_S: Final = 20.0
#: bound for the time-out that a hook requests
TIMEOUT_S_MAX: Final = 3600.0
_RETRY_S: Final = 1.0
_UNCONFIRMED: Final = "not known to be drained"
_LOOPBACK: Final[dict[Family, str]] = {"IPv4": "127.0.0.1", "IPv6": "::1"}
_SO_ORIGINAL_DST: Final = 80
_SOL_IPV6: Final = 41

_log = get_logger("node-proxy")


def local_pods(
    node: str, client: Client, clock: Callable[[], float], rng: Rng
) -> RunningInformer[Pod]:
    """Returns an informer of the Pods of *node*."""
    selection = Selection(Pods, field_selector=f"spec.nodeName={node}")
    return RunningInformer[Pod](client, selection, clock=clock, rng=rng)


class DrainHook:
    """The answers to hooks on one node.  *port* is the one that hooks call, and ours on loopback."""

    def __init__(
        self,
        pods: RunningInformer[Pod],
        backend: AnyBackend,
        flows: Conntrack,
        *,
        port: int,
        listen: Listen,
        families: tuple[Family, ...],
    ) -> None:
        self._informer = pods
        self._backend = backend
        self._flows = flows
        self._port = port
        self._listen = listen
        self._families = families
        #: Pods that opted in, by their addresses
        self._pods: dict[str, Pod] = {}
        self._moved = asyncio.Event()
        #: events to set at a change of a Pod, by its key
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answers hooks while the context lasts.  Raises ``PageError`` if the port cannot be opened."""
        served = GuardedPort(self._answer, Door(lifetime_s=TIMEOUT_S_MAX))
        tasks: list[asyncio.Task[None]] = []
        try:
            try:
                for family in self._families:
                    await served.listen(await self._listen(_LOOPBACK[family], self._port))
            except OSError as error:
                raise PageError(f"--drain-port {self._port}: {error.strerror or error}") from error
            self._informer.add_handler(self._on_pods, lambda: None)
            tasks.append(asyncio.create_task(self._informer.run(), name="node-proxy-pods"))
            tasks.append(asyncio.create_task(self._maintain_rules(), name="node-proxy-hooks"))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await served.close()
            await self._admit(())

    # Pods

    def _on_pods(self, changes: tuple[Change[Pod], ...]) -> None:
        for change in changes:
            for address in _addresses(change.old):
                if (
                    self._pods.get(address) is not None
                    and self._pods[address].metadata.key == change.object.metadata.key
                ):
                    del self._pods[address]
            if change.new is not None:
                self._pods.update(dict.fromkeys(_addresses(change.new), change.new))
            for event in self._waiting.get(change.object.metadata.key, ()):
                event.set()
        self._moved.set()

    async def _maintain_rules(self) -> None:
        admitted: tuple[str, ...] | None = None
        while True:
            self._moved.clear()
            addresses = tuple(sorted(self._pods))
            if addresses != admitted:
                admitted = addresses if await self._admit(addresses) else None
            if admitted is None:
                await asyncio.sleep(_RETRY_S)
            else:
                await self._moved.wait()

    async def _admit(self, addresses: tuple[str, ...]) -> bool:
        try:
            await self._backend.admit(self._families, addresses, self._port)
        except KernelError as error:
            _log.warning("preStop hooks are not answered", error=str(error))
            return False
        return True

    # Hooks

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        from aiohttp import web

        transport = request.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        pod = self._pods.get(original_destination(sock)) if sock is not None else None
        if pod is None:
            return web.Response(
                status=404, text="no Pod of this node that opted in has this address\n"
            )
        text = await self._drained(pod, _seconds(request.query.get("timeout", ""), TIMEOUT_S))
        idle_s = _seconds(request.query.get("idle", ""), 0.0)
        if idle_s and not text.startswith(_UNCONFIRMED):
            text += await self._idle(pod, idle_s)
        return web.Response(text=f"{text}\n")

    async def _idle(self, pod: Pod, idle_s: float) -> str:
        """Waits until this node tracks no connection to *pod*; returns the result as text."""
        clock = asyncio.get_running_loop().time
        ends = clock() + idle_s
        try:
            while count := sum(
                [await self._flows.established(address) for address in _addresses(pod)]
            ):
                if clock() >= ends:
                    return f"; open connections after {idle_s:g} s: {count}"
                await asyncio.sleep(_RETRY_S)
        except ConntrackError as error:
            return f"; open connections are not known: {error}"
        return "; no connection is open"

    async def _drained(self, pod: Pod, timeout_s: float) -> str:
        key = pod.metadata.key
        news = asyncio.Event()
        self._waiting.setdefault(key, set()).add(news)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    news.clear()
                    now = self._informer.cache.get(key)
                    if now is None or now.metadata.uid != pod.metadata.uid:
                        return "the Pod is gone"
                    condition = now.condition(CONDITION)
                    if condition is not None and condition.status == "True":
                        return f"drained: {condition.message}"
                    await news.wait()
        except TimeoutError:
            return f"{_UNCONFIRMED} after {timeout_s:g} s"
        finally:
            self._waiting[key].discard(news)
            if not self._waiting[key]:
                del self._waiting[key]


def original_destination(sock: socket.socket) -> str:
    """Returns the original destination of a redirected connection; "" if it was not redirected."""
    try:
        if sock.family == socket.AF_INET6:
            raw = sock.getsockopt(_SOL_IPV6, _SO_ORIGINAL_DST, 28)
            return socket.inet_ntop(socket.AF_INET6, raw[8:24])
        raw = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        return socket.inet_ntop(socket.AF_INET, struct.unpack("!4s", raw[4:8])[0])
    except OSError:
        return ""


def _addresses(pod: Pod | None) -> tuple[str, ...]:
    """Returns the addresses by which a hook may name the Pod, without the host's, which Pods share."""
    if pod is None or pod.spec.host_network or pod.has_ended:
        return ()
    if ANNOTATION_DRAIN_BARRIER not in (pod.metadata.annotations or {}):
        return ()
    parsed = map(parse_strict, pod.status.ips)
    return tuple(str(address) for address in parsed if address is not None)


def _seconds(text: str, otherwise_s: float) -> float:
    digits = text.removesuffix("s")
    return (
        min(float(digits), TIMEOUT_S_MAX)
        if digits.isascii() and digits.isdecimal()
        else otherwise_s
    )
