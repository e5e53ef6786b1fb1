"""``sliceplane dns query``: what a name leads to, from lists of a cluster, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.core import Service
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.text import lines_of
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Namespaces, Pods, Services
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.facts import Unread
from sliceplane.diagnose.explain.investigation import FORBIDDEN
from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.diagnose.io.explaining import explain
from sliceplane.diagnose.io.lists import list_whole
from sliceplane.dns import wire
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.io.service import watches
from sliceplane.dns.server import ALIASES_MAX
from sliceplane.dns.service import NamedService
from sliceplane.dns.view import DnsView, FoundName
from sliceplane.dns.wire import name_of, text_of, type_text
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Reader

#: what resolvers in Pods have: names with fewer dots are tried with each suffix first
NDOTS: Final = 5
#: of a name that leads nowhere
FINDINGS_MAX: Final = 3
#: codes, and their first letters, that can be why a name leads nowhere, by what is known of its
#: Service
_OF_NO_SERVICE: Final = ("S1", "S11")
_OF_CLUSTER_IP: Final = ("T7",)
_OF_HEADLESS: Final = ("B", "R", "E", "C3", "C5", "D6")
_OF_EXTERNAL_NAME: Final = ("C7",)
#: ... of records that name ports
_OF_PORTS: Final = ("T2", "T3")


class LookedUp(NamedTuple):
    """``found``: what the last name that was tried leads to. ``is_unknown``: there is no record in
    what could be read, and there may be one in what could not.
    """

    found: FoundName | None
    is_unknown: bool

    @property
    def has_record(self) -> bool:
        return self.found is not None and (self.found.records is not None or self.found.is_soa)


async def looked_up(
    client_of_api: Reader,
    zone: ZoneConfig,
    name: str,
    kind: int,
    *,
    client: str,
    namespace: str,
    show: Callable[[str], None],
    why: bool,
) -> LookedUp:
    """Raises ``StatusError``, ``Unreachable``."""
    view = DnsView(zone)
    tries = candidates(name, namespace, zone.domains[0])
    spaces = {space for tried in tries if (space := _namespace_of(tried, zone.domains[0]))}
    unread = [
        entry for of in watches(zone) for entry in await _read_into(view, client_of_api, of, spaces)
    ]
    for entry in unread if why else ():
        show(f"; not read: no right to {entry.right}")
    place = view.places.of(client)
    if why and zone.zone_answers:
        show(
            f"; for a client at {client}: node {place.node or 'unknown'}, zone "
            f"{place.zone or 'unknown'}"
        )
    found: FoundName | None = None
    known: NamedService | None = None
    is_unknown = False
    for tried in tries:
        missing = _needed(view, tried, zone.domains[0], unread)
        if missing is not None:
            show(f"; {tried} {type_text(kind)}: not known without the right to {missing.right}")
            is_unknown = True
            continue
        found = _told(view, tried, kind, place, show, why=why)
        if (
            known is None
            and found is not None
            and found.service is not None
            and found.service.service is not None
        ):
            known = found.service
        if found is None or found.rcode == wire.NOERROR:
            break
    answer = LookedUp(found, is_unknown)
    if answer.has_record:
        return LookedUp(found, False)
    if why and not is_unknown:
        subject = (
            (known.namespace, known.name)
            if known is not None
            else _meant(view, tries, zone.domains[0])
        )
        if subject is not None:
            causes = _causes(view.service(*subject)) + (_OF_PORTS if kind == wire.SRV else ())
            await _say_why(client_of_api, *subject, show, causes)
    return answer


async def _read_into(
    view: DnsView, client: Reader, selection: Selection, spaces: set[str]
) -> list[Unread]:
    """Lists *selection*, or where that is forbidden what it has in the namespaces *spaces*; returns
    what was not read.
    """
    unread = []
    resource = selection.resource
    parts = [selection]
    try:
        bodies = await list_whole(client, selection)
    except StatusError as error:
        if error.code != 403:
            raise
        parts = (
            [replace(selection, namespace=space) for space in sorted(spaces)]
            if resource.namespaced
            else []
        )
        unread = [] if parts else [Unread(selection, "list", FORBIDDEN)]
        bodies = []
    for part in parts if parts != [selection] else ():
        try:
            bodies += await list_whole(client, part)
        except StatusError as error:
            if error.code != 403:
                raise
            unread.append(Unread(part, "list", FORBIDDEN))
    kind_of: type[Object] = resource.projection
    view.apply([Change(resource.key, None, codec.decode(body, kind_of)) for body in bodies], 0.0)
    return unread


def _namespace_of(name: str, domain: str) -> str:
    """The namespace whose Services or Pods a name is of; "": none."""
    for word in ("svc", "pod"):
        if name.endswith(f".{word}.{domain}."):
            return name.removesuffix(f".{word}.{domain}.").rpartition(".")[2].lower()
    return ""


def _needed(view: DnsView, name: str, domain: str, unread: list[Unread]) -> Unread | None:
    """Lists what was not read and decides whether *name* exists."""
    space = _namespace_of(name, domain)
    labels = (
        name.removesuffix(f".svc.{domain}.").split(".") if name.endswith(f".svc.{domain}.") else []
    )
    service = view.service(space, labels[-2].lower()) if len(labels) > 1 else None
    for entry in unread:
        resource = entry.selection.resource
        if entry.selection.namespace != space and resource.namespaced:
            continue
        if space and resource.key == Services.key and service is None:
            return entry
        if (
            resource.key == EndpointSlices.key
            and service is not None
            and service.spec.cluster_ip == "None"
        ):
            return entry
        if (
            space
            and resource.key == Namespaces.key
            and not labels[1:]
            and not view.has_namespace(space)
        ):
            return entry
        if resource.key == Pods.key and not labels and space:
            return entry
    return None


def _meant(view: DnsView, tries: tuple[str, ...], domain: str) -> tuple[str, str] | None:
    """Namespace and name of the Service that one of *tries* is the name of, if there is the
    namespace.
    """
    for tried in tries:
        labels = tried.removesuffix(f".svc.{domain}.").split(".")
        if tried.endswith(f".svc.{domain}.") and len(labels) == 2 and view.has_namespace(labels[1]):
            return labels[1], labels[0]
    return None


async def _say_why(
    client: Reader, namespace: str, name: str, show: Callable[[str], None], causes: tuple[str, ...]
) -> None:
    """Shows what ``sliceplane explain`` finds of the Service that begins with one of *causes*, the
    worst first.
    """
    explanation = await explain(client, ExplainQuestion("service", name, namespace), time.time)
    found = [finding for finding in explanation.findings if _is_cause(finding, causes)]
    for number, finding in enumerate(found[:FINDINGS_MAX]):
        for line in lines_of(finding, "also" if number else "cause", None):
            show(f"; {line}")


def _causes(service: Service | None) -> tuple[str, ...]:
    if service is None:
        return _OF_NO_SERVICE
    if service.spec.type == "ExternalName":
        return _OF_EXTERNAL_NAME
    return _OF_HEADLESS if service.spec.cluster_ip == "None" else _OF_CLUSTER_IP


def _is_cause(finding: Finding, causes: tuple[str, ...]) -> bool:
    if finding.severity == "note" and finding.too_young is None:
        return False
    return any(
        finding.code == cause or (len(cause) == 1 and finding.code[0] == cause) for cause in causes
    )


def candidates(name: str, namespace: str, domain: str) -> tuple[str, ...]:
    if name.endswith("."):
        return (name,)
    suffixes = (f"{namespace or 'default'}.svc.{domain}", f"svc.{domain}", domain)
    searched = tuple(f"{name}.{suffix}." for suffix in suffixes)
    return (*searched, f"{name}.") if name.count(".") < NDOTS else (f"{name}.", *searched)


def _told(
    view: DnsView,
    name: str,
    kind: int,
    place: Locality,
    show: Callable[[str], None],
    *,
    why: bool,
    followed: int = 0,
) -> FoundName | None:
    found = view.find(wire.labels_of(name_of(name).lower()), kind, place)
    if found is None:
        show(f"; {name} is no name of the cluster: it would be forwarded")
        return None
    outcome = (
        wire.RCODE_NAMES[found.rcode]
        if found.rcode or found.records or found.is_soa
        else "no such record"
    )
    if why or not found.records:
        show(f"; {name} {type_text(kind)}: {outcome}: {found.why}")
    records = found.records
    if records is not None:
        for record in records.records():
            data = wire.data_text(records.kind, record[12:])
            show(f"{name} {view.config.ttl_s} IN {type_text(records.kind)} {data}")
    if found.alias and kind != wire.CNAME and followed < ALIASES_MAX:
        return _told(view, text_of(found.alias), kind, place, show, why=why, followed=followed + 1)
    return found
