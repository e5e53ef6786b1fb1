"""Registers the Node of a machine with our proxy if no kubelet does: ``sliceplane up --proxy``, and
``sliceplane proxy --register-node``.

It works like a kubelet (``--register-node``, kubernetes.io, "Nodes", self-registration). The Node
has the name under which the proxy reports, the machine's addresses, its CPUs, and a condition Ready
that is True while the proxy runs and False after a stop. Labels that a user adds stay, so ``kubectl
label node NAME topology.kubernetes.io/zone=ZONE`` sets the zone. A taint keeps schedulers from
binding Pods to a machine without a kubelet.

A Node that another program manages (a kubelet, the emulation) is never changed. A Node that a user
has deleted is created again by the next check.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import LABEL_HOSTNAME
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Nodes
from sliceplane.kit.io.interfaces import addresses_of, outward
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.tasks import ends_within
from sliceplane.kit.times import format_time
from sliceplane.watch.io.base import Client, Unreachable

#: value of ``status.nodeInfo.kubeletVersion`` that identifies our Nodes
KEEPER: Final = "sliceplane-proxy"
TAINT: Final = "sliceplane.dev/no-kubelet"
#: seconds between two checks of the Node and of the machine's addresses
CHECK_S: Final = 10.0
_STOP_S: Final = 2.0
#: Kubernetes' names of architectures (``kubernetes.io/arch``)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}

_log = get_logger("node-proxy")


class OwnNode:
    """The registration of this machine's Node."""

    def __init__(
        self, name: str, client: Client, clock: Callable[[], float], netns: str = ""
    ) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._netns = netns
        self._addresses: tuple[str, ...] = ()
        self._is_other = False
        self._problem = ""

    @asynccontextmanager
    async def registered(self) -> AsyncIterator[None]:
        """Keeps the Node Ready while the context lasts: it exists before a proxy reads it, and outlives
        the proxy with Ready False.
        """
        await self.register()
        keeping = asyncio.create_task(self.maintain(), name="this machine's Node")
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self.mark_not_ready()

    async def register(self) -> None:
        """Creates or updates the Node.  A problem is logged once, and the next check tries again."""
        self._addresses = (
            await self._own_addresses() or self._addresses
        )  # offline for a moment: the last ones stay
        await self._attempt(is_ready=True)

    async def maintain(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await self.register()

    async def mark_not_ready(self) -> None:
        """Sets Ready to False; the Node and its labels stay."""
        await ends_within(_STOP_S, self._attempt(is_ready=False))

    async def _attempt(self, *, is_ready: bool) -> None:
        try:
            await self._bring_up_to_date(is_ready=is_ready)
        except (StatusError, Unreachable) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning(
                    "this machine's Node cannot be written", node=self._name, problem=self._problem
                )
        else:
            self._problem = ""

    async def _bring_up_to_date(self, *, is_ready: bool) -> None:
        """Creates or updates the Node.  Raises ``StatusError`` and ``Unreachable``."""
        stored = await self._stored()
        if stored is None:
            if not is_ready:
                return
            stored = await self._created()
        status = stored.get("status") or {}
        keeper = (status.get("nodeInfo") or {}).get("kubeletVersion", "")
        if keeper not in ("", KEEPER):
            if not self._is_other:
                _log.info(
                    "another program keeps this machine's Node: it stays as it is",
                    node=self._name,
                    by=keeper,
                )
            self._is_other = True
            return
        patch = node_status(self._name, self._addresses, status, self._clock(), is_ready=is_ready)
        if patch is not None:
            body = encode({"status": patch})
            write = Write(
                verb="patch", resource=Nodes, name=self._name, subresource="status", body=body
            )
            await self._client.perform(write)

    async def _created(self) -> Document:
        """Creates the Node and removes the taint of a Node that is not ready: an API server adds it
        (kubernetes.io, admission plugin TaintNodesByCondition), and the controller that would remove
        it does not run here.
        """
        document = node_document(self._name)
        await self._client.perform(Write(verb="create", resource=Nodes, body=encode(document)))
        taints = encode({"spec": {"taints": document["spec"]["taints"]}})
        return decode_document(
            await self._client.perform(
                Write(verb="patch", resource=Nodes, name=self._name, body=taints)
            )
        )

    async def _stored(self) -> Document | None:
        try:
            return decode_document(await self._client.get(Nodes, "", self._name))
        except StatusError as error:
            if error.code != 404:
                raise
            return None

    async def _own_addresses(self) -> tuple[str, ...]:
        """Returns at most one address of each family: the one with a route to other machines."""
        if not self._netns:
            return tuple(address for address in (outward(4), outward(6)) if address)
        addresses = await addresses_of(self._netns) or ()
        by_family = {":" in address: address for address in reversed(addresses)}
        return tuple(by_family[family] for family in sorted(by_family))


def node_document(name: str) -> Document:
    machine = os.uname()
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                LABEL_HOSTNAME: name,
                "kubernetes.io/os": machine.sysname.lower(),
                "kubernetes.io/arch": _ARCHITECTURES.get(machine.machine, machine.machine),
            },
        },
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
    }


def node_status(
    name: str, addresses: tuple[str, ...], status: Document, now: float, *, is_ready: bool
) -> Document | None:
    """Returns a merge patch of *status*, the stored one; ``None`` if it is up to date. Conditions of
    other programs stay.
    """
    listed = [{"type": "InternalIP", "address": address} for address in addresses]
    listed.append({"type": "Hostname", "address": name})
    conditions = status.get("conditions") or []
    state = "True" if is_ready else "False"
    before: Document = next((entry for entry in conditions if entry.get("type") == "Ready"), {})
    if (status.get("addresses"), before.get("status")) == (listed, state):
        return None
    stamp = format_time(now)
    ready = {
        "type": "Ready",
        "status": state,
        "reason": "ProxyRuns" if is_ready else "ProxyStopped",
        "message": "the node proxy of this machine runs"
        if is_ready
        else (
            "the node proxy of this machine was stopped: start it again, or: kubectl delete node "
            f"{name}"
        ),
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": before.get("lastTransitionTime", stamp)
        if before.get("status") == state
        else stamp,
    }
    machine = os.uname()
    processors = {"cpu": str(os.cpu_count() or 1)}
    return {
        "addresses": listed,
        "capacity": processors,
        "allocatable": processors,
        "conditions": [*(entry for entry in conditions if entry.get("type") != "Ready"), ready],
        "nodeInfo": {
            "kubeletVersion": KEEPER,
            "kernelVersion": machine.release,
            "operatingSystem": machine.sysname.lower(),
            "architecture": _ARCHITECTURES.get(machine.machine, machine.machine),
        },
    }
