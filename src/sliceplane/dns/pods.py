"""Names of Pods by address, as ``10-0-0-7.NAMESPACE.pod``: no part of the specification, but
clients lean on them.

Such a name repeats the address that it leads to, so that a record can be made of it without any Pod
(``insecure``). With ``verified`` it is there while a Pod of the namespace has the address: one that
ended has none, for its address may be another's already, nor has one that is being deleted.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Literal

from sliceplane.api.core import Pod
from sliceplane.kit.ip import parse_lenient

PodNames = Literal["disabled", "insecure", "verified"]


class PodsByAddress:
    """How many Pods of a namespace have an address; owned by ``dns.view``."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bytes], int] = {}

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        for pod, change in ((new, 1), (old, -1)):
            for packed in _addresses(pod):
                assert pod is not None, "it has addresses"
                key = (pod.metadata.namespace, packed)
                count = self._counts.get(key, 0) + change
                if count:
                    self._counts[key] = count
                else:
                    del self._counts[key]

    def has(self, namespace: str, packed: bytes) -> bool:
        return (namespace, packed) in self._counts


def dashed_address(label: bytes) -> IPv4Address | IPv6Address | None:
    """The address that a lower-cased label spells with dashes for its dots or colons."""
    text = label.decode("ascii", "replace")
    return parse_lenient(text.replace("-", ".")) or parse_lenient(text.replace("-", ":"))


def _addresses(pod: Pod | None) -> set[bytes]:
    if pod is None or not pod.is_active:
        return set()
    return {
        address.packed for text in pod.status.ips if (address := parse_lenient(text)) is not None
    }
