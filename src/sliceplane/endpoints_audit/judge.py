"""What is wrong with the Service, the Endpoints and the EndpointSlices of one name.

A pure function of the facts of that name.  Kinds that ``block`` speak against switching the Endpoints controller off:
a reader misses addresses already, or would.  The others are there to be known.  Kinds that are ``fleeting`` may be
nothing but a change on its way: they count only if a second look finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sliceplane.api.discovery import MANAGED_BY_CONTROLLER
from sliceplane.endpoints_audit.addresses import LEAVING, READY, WAITING, Packed, spelled, unpack
from sliceplane.endpoints_audit.facts import EndpointsFacts, ServiceFacts, SliceFacts

ADDRESSES_MAX: Final = 1000
#: what the annotation says of an object that does not hold all; ``warning`` (1.21) is one that does
TRUNCATED: Final = "truncated"
#: addresses and slices that a detail names
EXAMPLES_MAX: Final = 3
#: managers that an Endpoints controller is known by: upstream's, where it is part of a larger program, and ours
CONTROLLERS: Final = frozenset(
    ("kube-controller-manager", "k3s", "kubelite", "kube-apiserver", "sliceplane", "sliceplane-controllers")
)


@dataclass(frozen=True, slots=True)
class Traits:
    """What holds for every finding of a kind.  ``one`` and ``many`` finish a sentence of the verdict."""

    title: str
    advice: str
    one: str
    many: str
    blocks: bool = True
    fleeting: bool = False


class FindingKind(Enum):
    """In the order of the report."""

    TRUNCATED = "truncated"
    STALE = "stale"
    DISAGREE = "disagree"
    ORPHAN = "orphan"
    DEAD_MIRROR = "dead-mirror"
    DOUBLED = "doubled"
    FOREIGN_WRITER = "foreign-writer"
    NO_PORT = "no-port"
    UNMIRRORED = "unmirrored"
    OWN_WRITER = "own-writer"
    LOCK = "lock"
    REVERSE_MIRRORED = "reverse-mirrored"

    @property
    def traits(self) -> Traits:
        return _TRAITS[self]


_TRAITS: Final = {
    FindingKind.TRUNCATED: Traits(
        "Endpoints that do not hold all addresses",
        "Move its readers to EndpointSlices: they miss addresses today.",
        "object is truncated",
        "objects are truncated",
    ),
    FindingKind.STALE: Traits(
        "Endpoints of a Service with a selector that nobody keeps up to date",
        "Is its controller off? Then delete the object, or hand it to the reverse mirror.",
        "object is out of date",
        "objects are out of date",
        fleeting=True,
    ),
    FindingKind.DISAGREE: Traits(
        "Endpoints and EndpointSlices of a Service without selector that have different addresses",
        "Decide which is right; then write EndpointSlices alone, or let the mirroring controller.",
        "object disagrees with its slices",
        "objects disagree with their slices",
        fleeting=True,
    ),
    FindingKind.ORPHAN: Traits(
        "Endpoints that belong to no Service",
        "Delete the object, or make the Service.",
        "object has no Service",
        "objects have no Service",
        fleeting=True,
    ),
    FindingKind.DEAD_MIRROR: Traits(
        "mirrored EndpointSlices without a live source: consumers get addresses that nobody keeps",
        "Delete these slices.",
        "Service has mirrored slices without a source",
        "Services have mirrored slices without a source",
        fleeting=True,
    ),
    FindingKind.DOUBLED: Traits(
        "addresses that are both in a mirrored EndpointSlice and in another one",
        "Stop one of the two: delete the Endpoints, or the other slices.",
        "Service has addresses in two slices",
        "Services have addresses in two slices",
        fleeting=True,
    ),
    FindingKind.FOREIGN_WRITER: Traits(
        "Endpoints of a Service with a selector into which somebody else writes addresses",
        "Find out what relies on it; let it write an EndpointSlice of its own.",
        "object has a second writer",
        "objects have a second writer",
    ),
    FindingKind.NO_PORT: Traits(
        "Pods without the port that their Service names: slices have them without a port, Endpoints not at all",
        "Correct the Service's targetPort, or name the port in the containers; both controllers do what they should.",
        "Service names a port that Pods lack",
        "Services name a port that Pods lack",
        blocks=False,
        fleeting=True,
    ),
    FindingKind.UNMIRRORED: Traits(
        "Endpoints that are not to be mirrored: only their readers see these addresses",
        "Write the addresses to EndpointSlices too, or take the label skip-mirror away.",
        "object is not mirrored",
        "objects are not mirrored",
        blocks=False,
    ),
    FindingKind.OWN_WRITER: Traits(
        "Endpoints of a Service without selector: mirrored, not concerned by the Endpoints controller",
        "Let the writer write EndpointSlices; the mirroring controller is needed until then.",
        "object has a writer of its own",
        "objects have writers of their own",
        blocks=False,
    ),
    FindingKind.LOCK: Traits(
        "Endpoints that are the lock of a leader election",
        "Let the program use a Lease. Locks work without the Endpoints controller.",
        "object is a lock",
        "objects are locks",
        blocks=False,
    ),
    FindingKind.REVERSE_MIRRORED: Traits(
        "Endpoints that the reverse mirror keeps for old readers",
        "Nothing to do while there are such readers.",
        "object is kept by the reverse mirror",
        "objects are kept by the reverse mirror",
        blocks=False,
    ),
}


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """``key``: ``namespace/name`` of the Service and its Endpoints."""

    kind: FindingKind
    key: str
    detail: str


def judge(
    key: str, service: ServiceFacts | None, endpoints: EndpointsFacts | None, slices: tuple[SliceFacts, ...]
) -> tuple[AuditFinding, ...]:
    """In the order of ``FindingKind``.  *slices* in any order."""
    ordered = sorted(slices, key=lambda each: each.name)
    problems = list(_slice_problems(service, endpoints, ordered))
    lacking = _without_port(service, [facts for facts in ordered if facts.manager == MANAGED_BY_CONTROLLER])
    if service is not None and lacking:
        names = _some([f'"{name}"' for name in service.named_ports])
        problems.append(
            (FindingKind.NO_PORT, f"{_count(len(lacking))} ({_spell(lacking)}), no container port has the name {names}")
        )
    if endpoints is not None:
        if endpoints.lock is not None:
            problems.append((FindingKind.LOCK, endpoints.lock))
        elif service is None:
            problems.append(
                (FindingKind.ORPHAN, f"{_count(endpoints.count)}, no Service of this name{_last_write(endpoints)}")
            )
        elif service.role == "external name":
            problems.append(
                (
                    FindingKind.ORPHAN,
                    f"{_count(endpoints.count)}, its Service is an ExternalName{_last_write(endpoints)}",
                )
            )
        else:
            problems.extend(_endpoints_problems(service, endpoints, ordered))
    order = list(FindingKind)
    return tuple(
        AuditFinding(kind, key, detail) for kind, detail in sorted(problems, key=lambda each: order.index(each[0]))
    )


def _endpoints_problems(
    service: ServiceFacts, endpoints: EndpointsFacts, slices: list[SliceFacts]
) -> Iterator[tuple[FindingKind, str]]:
    selecting = service.role == "selecting"
    if endpoints.reverse:
        yield FindingKind.REVERSE_MIRRORED, _count(endpoints.count)
    made_for_it = selecting or endpoints.reverse
    counted = _counterparts(selecting, endpoints, slices)
    # Endpoints that were made for a Service have one family
    left_out = _without_port(service, counted) if made_for_it else frozenset()
    difference = _compare(endpoints, counted, service.address_bytes if made_for_it else 0, left_out)
    full = endpoints.count >= ADDRESSES_MAX and difference.only_slices
    truncated = endpoints.capacity == TRUNCATED or bool(full)
    if truncated:
        missing = len(difference.only_slices)
        yield FindingKind.TRUNCATED, f"{_count(endpoints.count)}; {missing:,} more in EndpointSlices"
    wrong = bool(difference.only_endpoints) if truncated else not difference.empty
    if made_for_it:
        if wrong:
            yield FindingKind.STALE, difference.tell() + _last_write(endpoints)
        foreign = sorted({writer.manager for writer in endpoints.writers if writer.addresses} - CONTROLLERS)
        if foreign:
            yield FindingKind.FOREIGN_WRITER, f"written by {', '.join(foreign)}"
    else:
        hidden = endpoints.skip_mirror and bool(difference.only_endpoints)
        if hidden:
            yield FindingKind.UNMIRRORED, difference.tell() + _last_write(endpoints)
        elif wrong:
            yield FindingKind.DISAGREE, difference.tell() + _last_write(endpoints)
        own = sorted({writer.manager for writer in endpoints.writers if writer.addresses} - {"kube-apiserver"})
        if own and not hidden:
            yield FindingKind.OWN_WRITER, f"written by {', '.join(own)}"


def _counterparts(selecting: bool, endpoints: EndpointsFacts, slices: list[SliceFacts]) -> list[SliceFacts]:
    """The slices that ought to have the addresses of *endpoints*."""
    if endpoints.reverse:
        return [facts for facts in slices if not facts.mirrored]
    if not selecting:
        return slices
    # Others may add slices for the same Service (what other clusters have, say); Endpoints know nothing of these.
    own = [facts for facts in slices if facts.manager == MANAGED_BY_CONTROLLER]
    return own or [facts for facts in slices if not facts.mirrored]


def _slice_problems(
    service: ServiceFacts | None, endpoints: EndpointsFacts | None, slices: list[SliceFacts]
) -> Iterator[tuple[FindingKind, str]]:
    mirrored = [facts for facts in slices if facts.mirrored]
    why = _why_dead(service, endpoints) if mirrored else ""
    if why:
        yield FindingKind.DEAD_MIRROR, f"{why}: {_some([facts.name for facts in mirrored])}"
    copies = {address for facts in mirrored for address, _ in unpack(facts.addresses)}
    twice = {address for facts in slices if not facts.mirrored for address, _ in unpack(facts.addresses)} & copies
    if twice:
        names = [facts.name for facts in slices if any(address in twice for address, _ in unpack(facts.addresses))]
        yield FindingKind.DOUBLED, f"{_count(len(twice))} ({_spell(twice)}) in {_some(names)}"


def _why_dead(service: ServiceFacts | None, endpoints: EndpointsFacts | None) -> str:
    """Why the mirroring controller would not make the slices that are there (KEP-0752); "" if it would."""
    if service is None:
        return "no Service of this name"
    if service.role == "selecting":
        return "its Service has a selector now"
    if endpoints is None:
        return "no Endpoints of this name"
    if endpoints.skip_mirror:
        return "its Endpoints are not to be mirrored"
    return "its Endpoints are a lock" if endpoints.lock is not None else ""


@dataclass(frozen=True, slots=True)
class _Difference:
    """``turned``: addresses that are ready on one side alone."""

    only_endpoints: frozenset[Packed]
    only_slices: frozenset[Packed]
    turned: frozenset[Packed]

    @property
    def empty(self) -> bool:
        return not (self.only_endpoints or self.only_slices or self.turned)

    def tell(self) -> str:
        parts = (
            (self.only_endpoints, "only in Endpoints"),
            (self.only_slices, "only in EndpointSlices"),
            (self.turned, "not equally ready"),
        )
        return "; ".join(f"{_count(len(which))} {what} ({_spell(which)})" for which, what in parts if which)


def _without_port(service: ServiceFacts | None, slices: Iterable[SliceFacts]) -> frozenset[Packed]:
    """Addresses of Pods that have none of the ports which the Service asks for by name: they are in a slice without
    ports, and in Endpoints, which have an address for each port, not at all."""
    if service is None or service.role != "selecting" or not service.named_ports:
        return frozenset()
    lacking: set[Packed] = set()
    served: set[Packed] = set()
    for facts in slices:
        listed = (address for address, state in unpack(facts.addresses) if state != LEAVING)
        (lacking if facts.portless else served).update(listed)
    return frozenset(lacking - served)


def _compare(
    endpoints: EndpointsFacts, slices: list[SliceFacts], address_bytes: int, left_out: frozenset[Packed]
) -> _Difference:
    """*address_bytes*: the one family to compare; 0: all.  *left_out*: addresses that Endpoints need not have.

    An address that one side has both ready and not (two Pods on one host, say) is not compared in that.
    """
    left = _states([endpoints.addresses], address_bytes)
    right = _states([facts.addresses for facts in slices], address_bytes)
    both = left.keys() & right.keys()
    certain = ({READY}, {WAITING})
    return _Difference(
        frozenset(left.keys() - right.keys()),
        frozenset(right.keys() - left.keys() - left_out),
        frozenset(a for a in both if left[a] in certain and right[a] in certain and left[a] != right[a]),
    )


def _states(parts: Iterable[bytes], address_bytes: int) -> dict[Packed, set[int]]:
    """Addresses that Endpoints might have, with what is said of them."""
    states: dict[Packed, set[int]] = {}
    for data in parts:
        for address, state in unpack(data):
            if state != LEAVING and address_bytes in (0, len(address)):
                states.setdefault(address, set()).add(state)
    return states


def _count(addresses: int) -> str:
    return "1 address" if addresses == 1 else f"{addresses:,} addresses"


def _spell(addresses: Iterable[Packed]) -> str:
    return _some([spelled(address) for address in sorted(addresses, key=lambda address: (len(address), address))])


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:EXAMPLES_MAX])
    return f"{shown} and {len(names) - EXAMPLES_MAX:,} more" if len(names) > EXAMPLES_MAX else shown


def _last_write(endpoints: EndpointsFacts) -> str:
    last = max(((writer.time, writer.manager) for writer in endpoints.writers if writer.addresses), default=None)
    return "" if last is None else f"; last written {last[0]} by {last[1]}"
