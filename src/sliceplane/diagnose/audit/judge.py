"""Finds the faults of the Service, the Endpoints and the EndpointSlices of one name.

A pure function of the facts of that name. Codes that are not ``HARMLESS`` are reasons against
switching the Endpoints controller off: a reader misses addresses already, or would. ``HARMLESS``
ones are for information. ``FLEETING`` ones may be only a change under way: they count only if a
second check confirms them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.api.discovery import ANNOTATION_LEADER, LABEL_SKIP_MIRROR, MANAGED_BY_CONTROLLER
from sliceplane.api.findings.codes import cause_of
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName, rank
from sliceplane.api.findings.wording import count, some
from sliceplane.api.selectors.adoption import MANAGED_BY_ADOPTED
from sliceplane.diagnose.audit.addresses import READY, TERMINATING, WAITING, Packed, spelled, unpack
from sliceplane.diagnose.audit.facts import EndpointsFacts, FieldWriter, ServiceFacts, SliceFacts

ADDRESSES_MAX: Final = 1000
#: value of the annotation if the object lacks addresses; with ``warning`` (1.21) it has all
TRUNCATED: Final = "truncated"
#: addresses and slices that a sentence names
EXAMPLES_MAX: Final = 3
#: field managers of Endpoints controllers: upstream's, alone or in a larger program, and ours
CONTROLLERS: Final = frozenset(
    (
        "kube-controller-manager",
        "k3s",
        "kubelite",
        "kube-apiserver",
        "sliceplane",
        "sliceplane-controllers",
    )
)
#: managers of slices that are made of Pods
_SLICES_OF_PODS: Final = (MANAGED_BY_CONTROLLER, MANAGED_BY_ADOPTED)
HARMLESS: Final = frozenset(("T2", "E5", "L5", "L6", "L7"))
FLEETING: Final = frozenset(("L1", "L2", "L3", "E4", "E15", "E12", "T2"))


def key_of(finding: Finding) -> str:
    """Returns ``namespace/name`` of the Service and its Endpoints."""
    return f"{finding.subject.namespace}/{finding.subject.name}"


def judge(
    key: str,
    service: ServiceFacts | None,
    endpoints: EndpointsFacts | None,
    slices: tuple[SliceFacts, ...],
) -> tuple[Finding, ...]:
    """Returns the findings, the worst first. *slices* in any order."""
    ordered = sorted(slices, key=lambda facts: facts.name)
    return tuple(sorted(_Name(key, service, endpoints, ordered).findings(), key=rank))


class _Name(msgspec.Struct, frozen=True):
    """The objects of one name."""

    key: str
    service: ServiceFacts | None
    endpoints: EndpointsFacts | None
    slices: list[SliceFacts]

    def findings(self) -> Iterator[Finding]:
        service = self.service
        endpoints = self.endpoints
        yield from self._of_mirrored()
        portless = _without_port(
            service, [facts for facts in self.slices if facts.manager in _SLICES_OF_PODS]
        )
        if service is not None and portless:
            names = some([f'"{name}"' for name in service.named_ports])
            sentence = (
                f"{count(len(portless), 'address')} ({_spell(portless)}), no container port has "
                f"the name {names}"
            )
            field = Evidence(subject=self._service, field="spec.ports.targetPort", value=names)
            yield self._finding(
                "T2", sentence, f"{self._kubectl} edit service {self._service.name}", field
            )
        if endpoints is None:
            return
        if endpoints.lock is not None:
            yield self._of_endpoints("L6", endpoints.lock)
            if service is not None and service.role == "without selector" and endpoints.count:
                addresses = frozenset(_states([endpoints.addresses], 0))
                yield self._unmirrored(_Difference(addresses, frozenset(), frozenset()))
        elif service is None or service.role == "external name":
            why = "no Service of this name" if service is None else "its Service is an ExternalName"
            yield self._of_endpoints(
                "L3", f"{count(endpoints.count, 'address')}, {why}", self._deleting
            )
        else:
            yield from self._of_both(service, endpoints)

    def _of_both(self, service: ServiceFacts, endpoints: EndpointsFacts) -> Iterator[Finding]:
        selecting = service.role == "selecting"
        if endpoints.reverse:
            yield self._of_endpoints("L7", count(endpoints.count, "address"))
        is_controlled = selecting or endpoints.reverse
        counted = _counterparts(selecting, endpoints, self.slices)
        # Endpoints of a Service with a selector have one family
        portless = _without_port(service, counted) if is_controlled else frozenset()
        difference = _compare(
            endpoints, counted, service.address_bytes if is_controlled else 0, portless
        )
        full = endpoints.count >= ADDRESSES_MAX and difference.only_slices
        truncated = endpoints.capacity == TRUNCATED or bool(full)
        if truncated:
            missing = len(difference.only_slices)
            remedy = "move its readers to EndpointSlices: they miss addresses today"
            sentence = f"{count(endpoints.count, 'address')}; {missing:,} more in EndpointSlices"
            yield self._of_endpoints(
                "E8", sentence, remedy, effect="programs that read Endpoints never use the rest"
            )
        wrong = bool(difference.only_endpoints) if truncated else not difference.empty
        writers = {writer.manager for writer in endpoints.writers if writer.addresses}
        if is_controlled:
            if wrong:
                yield self._of_endpoints("L1", difference.describe(), self._deleting)
            if foreign := sorted(writers - CONTROLLERS):
                yield self._of_endpoints("L4", f"written by {', '.join(foreign)}")
            return
        hidden = endpoints.skip_mirror and bool(difference.only_endpoints)
        if hidden:
            yield self._unmirrored(difference)
        elif wrong:
            yield self._of_endpoints("L2", difference.describe())
        own = sorted(writers - {"kube-apiserver"})
        if own and not hidden:
            yield self._of_endpoints("L5", f"written by {', '.join(own)}")

    def _unmirrored(self, difference: _Difference) -> Finding:
        assert self.endpoints is not None, "they are what is not mirrored"
        mark = f"labels[{LABEL_SKIP_MIRROR}]"
        remedy = f"label endpoints {self._service.name} {LABEL_SKIP_MIRROR}-"
        if self.endpoints.lock is not None:
            mark = f"annotations[{ANNOTATION_LEADER}]"
            remedy = f"annotate endpoints {self._service.name} {ANNOTATION_LEADER}-"
        return self._finding(
            "E5",
            f"not mirrored to slices: {difference.describe()}",
            f"{self._kubectl} {remedy}",
            Evidence(subject=self._own_endpoints, field=f"metadata.{mark}", value="(set)"),
            subject=self._own_endpoints,
            effect="no slice has these addresses, and nodes read slices",
        )

    def _of_mirrored(self) -> Iterator[Finding]:
        mirrored = [facts for facts in self.slices if facts.mirrored]
        names = [facts.name for facts in mirrored]
        copies = {address for facts in mirrored for address in _listed(facts)}
        why = _why_dead(self.service, self.endpoints) if mirrored else ""
        if why:
            is_selecting = self.service is not None and self.service.role == "selecting"
            yield self._finding(
                "E4" if is_selecting else "E15",
                f"{why}; mirrored slices remain: {some(names)}",
                f"{self._kubectl} delete endpointslice {' '.join(names)}",
                *map(self._of_slice, mirrored),
                effect=f"{count(len(copies), 'address', 'stays')} that no writer keeps",
            )
        twice = {
            address for facts in self.slices if not facts.mirrored for address in _listed(facts)
        } & copies
        if twice:
            both = [facts for facts in self.slices if twice.intersection(_listed(facts))]
            sentence = (
                f"{count(len(twice), 'address')} ({_spell(twice)}) in "
                f"{some([facts.name for facts in both])}"
            )
            yield self._finding("E12", sentence, "", *map(self._of_slice, both))

    # -- a finding

    def _finding(
        self,
        code: str,
        sentence: str,
        remedy: str,
        *evidence: Evidence,
        subject: ObjectName | None = None,
        effect: str = "",
    ) -> Finding:
        return Finding(
            code=code,
            subject=subject or self._service,
            sentence=f"{self.key}: {sentence}",
            evidence=evidence[:EXAMPLES_MAX],
            effect=effect,
            remedy=remedy or cause_of(code).remedy,
        )

    def _of_endpoints(
        self, code: str, sentence: str, remedy: str = "", *, effect: str = ""
    ) -> Finding:
        assert self.endpoints is not None, "they are what is wrong"
        time, writer = _last_write(self.endpoints.writers)
        evidence = Evidence(
            subject=self._own_endpoints,
            field="subsets",
            value=count(self.endpoints.count, "address"),
            writer=writer,
            written=time,
        )
        return self._finding(
            code, sentence, remedy, evidence, subject=self._own_endpoints, effect=effect
        )

    def _of_slice(self, facts: SliceFacts) -> Evidence:
        subject = self._named("endpointslices.discovery.k8s.io", "EndpointSlice", facts.name)
        time, writer = _last_write(facts.writers)
        addresses = _spell(_listed(facts))
        return Evidence(
            subject=subject, field="endpoints", value=addresses, writer=writer, written=time
        )

    def _named(self, plural: str, kind: str, name: str = "") -> ObjectName:
        namespace, _, own = self.key.partition("/")
        return ObjectName(plural, kind, namespace, name or own)

    @property
    def _service(self) -> ObjectName:
        return self._named("services", "Service")

    @property
    def _own_endpoints(self) -> ObjectName:
        return self._named("endpoints", "Endpoints")

    @property
    def _kubectl(self) -> str:
        return f"kubectl -n {self._service.namespace}"

    @property
    def _deleting(self) -> str:
        return f"{self._kubectl} delete endpoints {self._service.name}"


def _listed(facts: SliceFacts) -> set[Packed]:
    return {address for address, _ in unpack(facts.addresses)}


def _counterparts(
    selecting: bool, endpoints: EndpointsFacts, slices: list[SliceFacts]
) -> list[SliceFacts]:
    """Returns the slices that should have the addresses of *endpoints*."""
    if endpoints.reverse:
        return [facts for facts in slices if not facts.mirrored]
    if not selecting:
        return slices
    # Others may add slices for the same Service (with endpoints of other clusters, say), which
    # Endpoints do not have.
    own = [facts for facts in slices if facts.manager in _SLICES_OF_PODS]
    return own or [facts for facts in slices if not facts.mirrored]


def _why_dead(service: ServiceFacts | None, endpoints: EndpointsFacts | None) -> str:
    """Returns why the mirroring controller would not create the existing slices (KEP-0752); "" if
    it would.
    """
    if service is None:
        return "no Service of this name"
    if service.role == "selecting":
        return "its Service has a selector now"
    if endpoints is None:
        return "no Endpoints of this name"
    if endpoints.skip_mirror:
        return "its Endpoints are not to be mirrored"
    return "its Endpoints are a lock" if endpoints.lock is not None else ""


class _Difference(msgspec.Struct, frozen=True):
    """``turned``: addresses that are ready on one side only."""

    only_endpoints: frozenset[Packed]
    only_slices: frozenset[Packed]
    turned: frozenset[Packed]

    @property
    def empty(self) -> bool:
        return not (self.only_endpoints or self.only_slices or self.turned)

    def describe(self) -> str:
        parts = (
            (self.only_endpoints, "only in Endpoints"),
            (self.only_slices, "only in EndpointSlices"),
            (self.turned, "not equally ready"),
        )
        return "; ".join(
            f"{count(len(which), 'address')} {what} ({_spell(which)})"
            for which, what in parts
            if which
        )


def _without_port(service: ServiceFacts | None, slices: Iterable[SliceFacts]) -> frozenset[Packed]:
    """Returns the addresses of Pods without any of the Service's named ports: they are in a slice
    without ports, and not in Endpoints, which have an address for each port.
    """
    if service is None or service.role != "selecting" or not service.named_ports:
        return frozenset()
    portless_only: set[Packed] = set()
    served: set[Packed] = set()
    for facts in slices:
        listed = (address for address, state in unpack(facts.addresses) if state != TERMINATING)
        (portless_only if facts.portless else served).update(listed)
    return frozenset(portless_only - served)


def _compare(
    endpoints: EndpointsFacts,
    slices: list[SliceFacts],
    address_bytes: int,
    portless: frozenset[Packed],
) -> _Difference:
    """*address_bytes*: the one family to compare; 0: all. *portless*: addresses that Endpoints may
    lack.

    The readiness of an address that one side has both ready and not ready (two Pods on one host,
    say) is not compared.
    """
    endpoint_states = _states([endpoints.addresses], address_bytes)
    slice_states = _states([facts.addresses for facts in slices], address_bytes)
    both = endpoint_states.keys() & slice_states.keys()
    certain = ({READY}, {WAITING})
    return _Difference(
        frozenset(endpoint_states.keys() - slice_states.keys()),
        frozenset(slice_states.keys() - endpoint_states.keys() - portless),
        frozenset(
            a
            for a in both
            if endpoint_states[a] in certain
            and slice_states[a] in certain
            and endpoint_states[a] != slice_states[a]
        ),
    )


def _states(parts: Iterable[bytes], address_bytes: int) -> dict[Packed, set[int]]:
    """Returns the addresses that Endpoints might have, with their states."""
    states: dict[Packed, set[int]] = {}
    for data in parts:
        for address, state in unpack(data):
            if state != TERMINATING and address_bytes in (0, len(address)):
                states.setdefault(address, set()).add(state)
    return states


def _spell(addresses: Iterable[Packed]) -> str:
    return some(
        [
            spelled(address)
            for address in sorted(addresses, key=lambda address: (len(address), address))
        ]
    )


def _last_write(writers: Iterable[FieldWriter]) -> tuple[str, str]:
    """Returns time and manager of the last write; "": unknown."""
    return max(
        ((writer.time, writer.manager) for writer in writers if writer.addresses), default=("", "")
    )
