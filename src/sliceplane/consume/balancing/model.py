"""The values of a client's view of a Service.  All are frozen; strings are shared with the slices
they came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class Endpoint(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One endpoint, seen through all slices. Absent conditions are read as KEP-0752 says: ready and
    serving are true, terminating is false.
    """

    #: the Pod's uid; the address and port where the slice names no object
    id: str
    #: canonical spelling, IPv6 without brackets
    address: str
    #: 0: the slice has no ports (a headless Service without any)
    port: int = 0
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    #: "" where the slice does not say
    zone: str = ""
    node: str = ""
    hostname: str = ""
    #: name of the Pod (or whatever object the slice names); its namespace is the Service's
    pod: str = ""
    #: zones and nodes whose clients should use it
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()

    @property
    def authority(self) -> str:
        """``address:port`` for a URL, brackets around IPv6 included; the address alone if there is
        no port.
        """
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}" if self.port else host


class ViewChange(msgspec.Struct, frozen=True):
    """The difference that takes a reader from one whole state to a later one. Tuples are in the
    order of ids; an id is in one only.

    ``updated`` holds pairs (old, new) of the same id: other conditions, hints, port, or even
    another address.
    """

    added: tuple[Endpoint, ...] = ()
    removed: tuple[Endpoint, ...] = ()
    updated: tuple[tuple[Endpoint, Endpoint], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.updated)

    @property
    def gone(self) -> tuple[str, ...]:
        """Authorities that no longer belong to the Service: connections to them should be
        closed.
        """
        moved = tuple(old.authority for old, new in self.updated if old.authority != new.authority)
        return tuple(endpoint.authority for endpoint in self.removed) + moved


@dataclass(slots=True)
class Pending:
    """The changes that one reader has not observed yet: each changed endpoint as it was when the
    reader last looked.

    Bounded by the endpoints that there were and are, however slow the reader is.
    """

    before: dict[str, Endpoint | None] = field(default_factory=dict)

    def note(self, identity: str, before: Endpoint | None) -> None:
        self.before.setdefault(identity, before)

    def take(self, current: dict[str, Endpoint]) -> ViewChange:
        """The difference to *current*; what came and went meanwhile is no part of it."""
        added: list[Endpoint] = []
        removed: list[Endpoint] = []
        updated: list[tuple[Endpoint, Endpoint]] = []
        for identity in sorted(self.before):
            old = self.before[identity]
            new = current.get(identity)
            if old is None:
                if new is not None:
                    added.append(new)
            elif new is None:
                removed.append(old)
            elif old != new:
                updated.append((old, new))
        self.before = {}
        return ViewChange(tuple(added), tuple(removed), tuple(updated))
