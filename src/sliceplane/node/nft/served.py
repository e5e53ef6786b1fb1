"""Reads the targets of Services' cluster IPs from a listing of the kernel's table, whatever program
wrote it last.

A destination counts as served only if a connection reaches it: from the hooks ``nat-prerouting`` and
``nat-output`` over jumps to a rule that looks it up in the map, if every set on the way (``layout``,
``buckets``) contains the destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sliceplane.consume.served import ClusterDestination, Served, ServedTarget
from sliceplane.node.nft.buckets import BUCKET_COUNTS, bucket_map, bucket_set
from sliceplane.node.nft.layout import (
    CLUSTER_IPS,
    HAIRPIN,
    NO_ENDPOINTS,
    SERVICE_IPS,
    SINGLE_ENDPOINTS,
)
from sliceplane.node.nft.listing import Form

#: both must lead to a map: packets of Pods enter by the first, those of the node itself by the second
_HOOKS: Final = ("nat-prerouting", "nat-output")
_MASQUERADING_HOOK: Final = "nat-postrouting"
#: what ``hairpins`` reads of kube-proxy's table (pkg/proxy/nftables/proxier.go)
KUBE_PROXY_PARTS: Final = (
    ("chain", _MASQUERADING_HOOK),
    ("chain", "masquerading"),
    ("set", HAIRPIN.name),
)


def served(form: Form) -> Served:
    """Returns the destinations of *form*, a table of ours (``listing.listed``)."""
    return _Reader(form).read()


def hairpins(form: Form, destinations: Served) -> Served:
    """Returns the targets of *destinations* that reach themselves: their connections to themselves
    are looked up in a set, and masqueraded. Chain and set have the same names in kube-proxy's table.
    """
    return _Reader(form).hairpins(destinations)


class _Reader:
    def __init__(self, form: Form) -> None:
        self._chains: dict[str, list[Any]] = {
            name.removeprefix("chain "): rules[1:]
            for name, rules in form.items()
            if name.startswith("chain ")
        }
        self._elements: dict[str, dict[str, str]] = {
            name.removeprefix("container "): dict(_pair(text) for text in content[1:])
            for name, content in form.items()
            if name.startswith("container ")
        }
        used = [set(self._used(hook, set())) for hook in _HOOKS]
        self._used_everywhere = used[0] & used[1]

    def read(self) -> Served:
        result: Served = {
            destination: frozenset()
            for destination in map(_destination, self._keys(NO_ENDPOINTS.name))
        }
        for key, verdict in self._elements_of(SERVICE_IPS.name).items():
            result[_destination(key)] = frozenset(self._targets(verdict.split()[-1], set()))
        cluster_ips = set(self._elements_of(CLUSTER_IPS.name))
        for key, value in self._elements_of(SINGLE_ENDPOINTS.name).items():
            if key.split(" . ")[0] in cluster_ips:
                result.setdefault(_destination(key), frozenset((_target(value),)))
        for count in BUCKET_COUNTS:
            members = set(self._elements_of(bucket_set(count).name))
            for key, value in self._elements_of(bucket_map(count).name).items():
                destination, _, _ = key.rpartition(" . ")
                if destination in members and destination.split(" . ")[0] in cluster_ips:
                    earlier = result.get(_destination(destination), frozenset())
                    result[_destination(destination)] = earlier | {_target(value)}
        return result

    def hairpins(self, destinations: Served) -> Served:
        if HAIRPIN.name not in set(self._used(_MASQUERADING_HOOK, set())):
            return {}
        keys = {tuple(key.split(" . ")[1:]) for key in self._keys(HAIRPIN.name)}
        return {
            destination: frozenset(
                target
                for target in targets
                if (target.address, destination.protocol, str(target.port)) in keys
            )
            for destination, targets in destinations.items()
        }

    def _keys(self, container: str) -> dict[str, str]:
        return self._elements.get(container, {})

    def _elements_of(self, container: str) -> dict[str, str]:
        """Returns the elements of a container that packets of both hooks are looked up in."""
        return self._keys(container) if container in self._used_everywhere else {}

    def _used(self, chain: str, visited: set[str]) -> Iterator[str]:
        """Yields the names of the containers that packets of *chain* are looked up in."""
        visited.add(chain)
        for part in _parts(self._chains.get(chain, [])):
            for name in _jumps(part):
                if name not in visited:
                    yield from self._used(name, visited)
            yield from (text[1:] for text in _texts(part) if text.startswith("@"))

    def _targets(self, chain: str, visited: set[str]) -> Iterator[ServedTarget]:
        """Yields the targets to which *chain* translates destinations."""
        visited.add(chain)
        for part in _parts(self._chains.get(chain, [])):
            for name in _jumps(part):
                if name not in visited:
                    yield from self._targets(name, visited)
            match part:
                case {"dnat": {"addr": str() as address, "port": int() as port}}:
                    yield ServedTarget(address, port)
                case {
                    "dnat": {
                        "addr": {
                            "map": {
                                "key": {"numgen": {"mod": count, "offset": first}},
                                "data": str(name),
                            }
                        }
                    }
                }:
                    elements = self._keys(name[1:])
                    values = (elements.get(str(number)) for number in range(first, first + count))
                    yield from (_target(value) for value in values if value is not None)


def _parts(rules: list[Any]) -> Iterator[Any]:
    for rule in rules:
        yield from rule


def _jumps(part: Any) -> Iterator[str]:
    """Yields the chains that a statement may lead to: jumps, and verdicts of its anonymous map."""
    match part:
        case {"jump": {"target": str(name)}} | {"goto": {"target": str(name)}}:
            yield name
        case {"vmap": {"data": {"set": list(entries)}}}:
            for _, verdict in entries:
                yield from _jumps(verdict)


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from _texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition(" : ")
    return key, value


def _destination(key: str) -> ClusterDestination:
    address, protocol, port = key.split(" . ")
    return ClusterDestination(address, protocol, int(port))


def _target(value: str) -> ServedTarget:
    address, port = value.split(" . ")
    return ServedTarget(address, int(port))
