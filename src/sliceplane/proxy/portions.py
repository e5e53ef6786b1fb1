"""A Service of many ports is served port by port, so that no other waits for all of them.

A write carries every change of ordinary Services, and of large ones together at most ``PORTION``: so many destinations
and targets.  What is left goes with the next write, behind whatever has changed by then; large Services take turns.
Between two portions a Service has some ports as they were and some as they are to be, each whole; endpoints are always
the newest.

Owned by one ``tracker.ServiceTracker``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sliceplane.proxy.model import ServedPort, ServiceKey

#: more ports make a Service large; what fewer may ask for is bounded (``bounds``)
LARGE: Final = 16
#: what large Services may change in one write; some 0.3 s of the kernel's.  Each portion looks at its whole Service
#: again, so it must not be small beside the largest Service that ``bounds`` allow
PORTION: Final = 4_000

Ports = tuple[ServedPort, ...]


class Portions:
    """What was told of large Services, and which of them have more to tell."""

    def __init__(self) -> None:
        self._told: dict[ServiceKey, Ports] = {}
        self._behind: dict[ServiceKey, None] = {}  # the next in turn first

    @property
    def waiting(self) -> int:
        """How many have something to tell."""
        return len(self._behind)

    def is_waiting(self, key: ServiceKey) -> bool:
        return key in self._behind

    def on_service(self, key: ServiceKey, old: Callable[[], Ports], new: Ports) -> None:
        """Before a Service becomes another one: *old* is what was told of it, if it was not large."""
        if len(new) > LARGE and key not in self._told:
            self._told[key] = old()

    def is_large(self, key: ServiceKey) -> bool:
        return key in self._told

    def put(self, key: ServiceKey) -> None:
        """A large Service changed."""
        self._behind.setdefault(key)

    def pop(self) -> ServiceKey:
        """Whose turn it is; at least one waits."""
        key = next(iter(self._behind))
        del self._behind[key]
        return key

    def advance(
        self, key: ServiceKey, wanted: Ports, size: Callable[[ServedPort], int], budget: int
    ) -> tuple[Ports, int]:
        """What to tell of a large Service next, and what that costs: at least one port's change, if there is any, and
        no more than *budget* but for that one.  *size*: of the endpoints of a port."""
        before = {port.name: port for port in self._told[key]}
        names = {port.name for port in wanted}
        result: list[ServedPort] = []
        spent = 0
        complete = True
        for port in wanted:
            held = before.get(port.name)
            if held == port:
                result.append(port)
                continue
            cost = _destinations(port) + (size(port) if held is None else _destinations(held))
            if spent and spent + cost > budget:
                complete = False
                if held is not None:
                    result.append(held)
                continue
            spent += cost
            result.append(port)
        for name, held in before.items():
            if name in names:
                continue
            cost = _destinations(held) + size(held)
            if spent and spent + cost > budget:
                complete = False
                result.append(held)
            else:
                spent += cost
        self._note(key, tuple(result), complete=complete)
        return tuple(result), spent

    def finish(self, key: ServiceKey, wanted: Ports) -> Ports:
        """All at once, for a write that replaces everything."""
        self._behind.pop(key, None)
        self._note(key, wanted, complete=True)
        return wanted

    def _note(self, key: ServiceKey, ports: Ports, *, complete: bool) -> None:
        if not complete:
            self._behind[key] = None
        if complete and len(ports) <= LARGE:
            del self._told[key]
        else:
            self._told[key] = ports

    def check(self) -> None:
        assert self._behind.keys() <= self._told.keys(), f"{self._behind.keys() - self._told.keys()} are not large"


def _destinations(port: ServedPort) -> int:
    return 1 + len(port.external_ips) + len(port.vips) + bool(port.node_port)
