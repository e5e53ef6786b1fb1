"""``sliceplane dns query``: what a name leads to, from lists of a cluster, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sliceplane.api import codec
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.dns import wire
from sliceplane.dns.server import ALIASES_MAX
from sliceplane.dns.service import NamedService
from sliceplane.dns.view import DnsView, FoundName, ZoneConfig
from sliceplane.dns.wire import name_of, text_of, type_text
from sliceplane.explain.question import ExplainQuestion
from sliceplane.findings.text import lines_of
from sliceplane.informer.cache import Change
from sliceplane.proxy.usable import Locality
from sliceplane.shell.resolver.service import watches
from sliceplane.shell.tools.explaining import explain
from sliceplane.shell.tools.lists import list_whole
from sliceplane.shell.transport.base import Reader

#: what resolvers in Pods have: names with fewer dots are tried with each suffix first
NDOTS: Final = 5
#: of a name that leads nowhere
FINDINGS_MAX: Final = 3


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
) -> FoundName | None:
    """Raises ``StatusError``, ``Unreachable``.  The last thing found is what the name leads to."""
    view = DnsView(zone)
    for selection in watches(zone):
        try:
            bodies = await list_whole(client_of_api, selection)
        except StatusError as error:
            if error.code != 403:
                raise
            show(f"; {selection.resource.plural} may not be read: {error}")
            continue
        kind_of: type[Object] = selection.resource.projection
        view.apply([Change(selection.resource.key, None, codec.decode(body, kind_of)) for body in bodies], 0.0)
    place = view.places.of(client)
    if why and zone.zone_answers:
        show(f"; for a client at {client}: node {place.node or 'unknown'}, zone {place.zone or 'unknown'}")
    found: FoundName | None = None
    known: NamedService | None = None
    tries = candidates(name, namespace, zone.domains[0])
    for tried in tries:
        found = _told(view, tried, kind, place, show, why=why)
        if known is None and found is not None and found.service is not None and found.service.service is not None:
            known = found.service
        if found is None or found.rcode == wire.NOERROR:
            break
    if why and (found is None or (found.records is None and not found.is_soa)):
        subject = (known.namespace, known.name) if known is not None else _meant(view, tries, zone.domains[0])
        if subject is not None:
            await _say_why(client_of_api, *subject, show)
    return found


def _meant(view: DnsView, tries: tuple[str, ...], domain: str) -> tuple[str, str] | None:
    """Namespace and name of the Service that one of *tries* is the name of, if there is the namespace."""
    for tried in tries:
        labels = tried.removesuffix(f".svc.{domain}.").split(".")
        if tried.endswith(f".svc.{domain}.") and len(labels) == 2 and view.has_namespace(labels[1]):
            return labels[1], labels[0]
    return None


async def _say_why(client: Reader, namespace: str, name: str, show: Callable[[str], None]) -> None:
    """What ``sliceplane explain`` finds of the Service, the worst first."""
    explanation = await explain(client, ExplainQuestion("service", name, namespace), time.time)
    for finding in explanation.findings[:FINDINGS_MAX]:
        for line in lines_of(finding, "cause", None):
            show(f"; {line}")


def candidates(name: str, namespace: str, domain: str) -> tuple[str, ...]:
    if name.endswith("."):
        return (name,)
    suffixes = (f"{namespace or 'default'}.svc.{domain}", f"svc.{domain}", domain)
    searched = tuple(f"{name}.{suffix}." for suffix in suffixes)
    return (*searched, f"{name}.") if name.count(".") < NDOTS else (f"{name}.", *searched)


def _told(
    view: DnsView, name: str, kind: int, place: Locality, show: Callable[[str], None], *, why: bool, followed: int = 0
) -> FoundName | None:
    found = view.find(wire.labels_of(name_of(name).lower()), kind, place)
    if found is None:
        show(f"; {name} is no name of the cluster: it would be forwarded")
        return None
    outcome = wire.RCODE_NAMES[found.rcode] if found.rcode or found.records or found.is_soa else "no such record"
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
