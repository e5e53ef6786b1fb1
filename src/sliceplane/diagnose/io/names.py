"""``sliceplane dns query``: resolves a name from lists of a cluster, with the reason."""

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
from sliceplane.api.findings.wording import grant_command, resources_by_verb
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
from sliceplane.dns.locations import NOWHERE
from sliceplane.dns.server import ALIASES_MAX
from sliceplane.dns.service import NamedService
from sliceplane.dns.view import DnsView, LookupResult
from sliceplane.dns.wire import name_of, text_of, type_text
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Reader

#: the ndots option of resolvers in Pods: names with fewer dots are tried with each suffix first
NDOTS: Final = 5
#: findings about a name without records
FINDINGS_MAX: Final = 3
#: codes, or their first letters, that can be the cause of a name without records, by the type of
#: its Service
_OF_NO_SERVICE: Final = ("S1", "S11")
_OF_CLUSTER_IP: Final = ("T7",)
_OF_HEADLESS: Final = ("B", "R", "E", "C3", "C5", "D6")
_OF_EXTERNAL_NAME: Final = ("C7",)
#: ... for records with ports
_OF_PORTS: Final = ("T2", "T3")


class NameLookup(NamedTuple):
    """``result``: the answer for the last name that was tried. ``is_unknown``: no record was read,
    but one may be among the objects that could not be read.
    """

    result: LookupResult | None
    is_unknown: bool

    @property
    def has_record(self) -> bool:
        return self.result is not None and (self.result.records is not None or self.result.is_soa)


async def look_up_name(
    client_of_api: Reader,
    zone: ZoneConfig,
    name: str,
    kind: int,
    *,
    client: str,
    namespace: str,
    show: Callable[[str], None],
    why: bool,
) -> NameLookup:
    """Raises ``StatusError``, ``Unreachable``."""
    view = DnsView(zone)
    tries = candidates(name, namespace, zone.domains[0])
    unread = await _read_for(view, client_of_api, tries, kind)
    for entry in unread if why else ():
        show(f"; not read: no right to {entry.right}")
    for verb, keys in resources_by_verb(entry.right for entry in unread if why).items():
        show(f"; to grant it: {grant_command(verb, keys)}")
    location = view.locations.of(client)
    if why and zone.zone_answers:
        show(
            f"; for a client at {client}: node {location.node or 'unknown'}, zone "
            f"{location.zone or 'unknown'}"
        )
    result: LookupResult | None = None
    named: NamedService | None = None
    is_unknown = False
    for tried in tries:
        missing = _needed(view, tried, zone.domains[0], unread)
        if missing is not None:
            show(f"; {tried} {type_text(kind)}: not known without the right to {missing.right}")
            is_unknown = True
            continue
        result = _resolve(view, tried, kind, location, show, why=why)
        if (
            named is None
            and result is not None
            and result.service is not None
            and result.service.service is not None
        ):
            named = result.service
        if result is None or result.rcode == wire.NOERROR:
            break
    answer = NameLookup(result, is_unknown)
    if answer.has_record:
        return NameLookup(result, False)
    if why and not is_unknown:
        subject = (
            (named.namespace, named.name)
            if named is not None
            else _find_service_name(view, tries, zone.domains[0])
        )
        if subject is not None:
            causes = _causes(view.service(*subject)) + (_OF_PORTS if kind == wire.SRV else ())
            await _explain_absence(client_of_api, *subject, show, causes)
    return answer


async def _read_for(
    view: DnsView, client: Reader, tries: tuple[str, ...], kind: int
) -> list[Unread]:
    """Lists what the names *tries* depend on; returns what was not read. Names of addresses depend
    on all namespaces, other names on those that they name, and that their aliases lead to.
    """
    selections = watches(view.config)
    unread = [
        entry
        for selection in selections
        if not selection.resource.namespaced
        for entry in await _read_into(view, client, selection)
    ]
    remaining = [selection for selection in selections if selection.resource.namespaced]
    if any(tried.lower().endswith(".arpa.") for tried in tries):
        remaining = [
            selection for selection in remaining if await _read_into(view, client, selection)
        ]
    read: set[str] = set()
    while spaces := _namespaces(view, tries, kind) - read:
        read |= spaces
        for space in sorted(spaces):
            for selection in remaining:
                unread += await _read_into(view, client, replace(selection, namespace=space))
    return unread


def _namespaces(view: DnsView, tries: tuple[str, ...], kind: int) -> set[str]:
    """Returns the namespaces of *tries* and of their aliases, as far as these were read."""
    spaces: set[str] = set()
    for tried in tries:
        name = tried
        for _ in range(ALIASES_MAX + 1):
            spaces |= {_namespace_of(name.lower(), domain) for domain in view.config.domains}
            result = view.find(wire.labels_of(name_of(name).lower()), kind, NOWHERE)
            if result is None or not result.alias:
                break
            name = text_of(result.alias)
    return spaces - {""}


async def _read_into(view: DnsView, client: Reader, selection: Selection) -> list[Unread]:
    """Lists *selection*; returns it if that is forbidden."""
    resource = selection.resource
    try:
        bodies = await list_whole(client, selection)
    except StatusError as error:
        if error.code != 403:
            raise
        return [Unread(selection, "list", FORBIDDEN)]
    kind_of: type[Object] = resource.projection
    view.apply([Change(resource.key, None, codec.decode(body, kind_of)) for body in bodies], 0.0)
    return []


def _namespace_of(name: str, domain: str) -> str:
    """Returns the namespace of the Service or Pod with this name; "": none."""
    for kind in ("svc", "pod"):
        if name.endswith(f".{kind}.{domain}."):
            return name.removesuffix(f".{kind}.{domain}.").rpartition(".")[2].lower()
    return ""


def _needed(view: DnsView, name: str, domain: str, unread: list[Unread]) -> Unread | None:
    """Returns the unread list that decides whether *name* exists; ``None``: all were read."""
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


def _find_service_name(
    view: DnsView, tries: tuple[str, ...], domain: str
) -> tuple[str, str] | None:
    """Returns namespace and name of the Service of one of *tries*, if the namespace exists."""
    for tried in tries:
        labels = tried.removesuffix(f".svc.{domain}.").split(".")
        if tried.endswith(f".svc.{domain}.") and len(labels) == 2 and view.has_namespace(labels[1]):
            return labels[1], labels[0]
    return None


async def _explain_absence(
    client: Reader, namespace: str, name: str, show: Callable[[str], None], causes: tuple[str, ...]
) -> None:
    """Shows the findings of ``sliceplane explain`` about the Service whose codes begin with one of
    *causes*, the worst first.
    """
    explanation = await explain(client, ExplainQuestion("service", name, namespace), time.time)
    findings = [finding for finding in explanation.findings if _is_cause(finding, causes)]
    for number, finding in enumerate(findings[:FINDINGS_MAX]):
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


def _resolve(
    view: DnsView,
    name: str,
    kind: int,
    location: Locality,
    show: Callable[[str], None],
    *,
    why: bool,
    followed: int = 0,
) -> LookupResult | None:
    result = view.find(wire.labels_of(name_of(name).lower()), kind, location)
    if result is None:
        show(f"; {name} is no name of the cluster: it would be forwarded")
        return None
    outcome = (
        wire.RCODE_NAMES[result.rcode]
        if result.rcode or result.records or result.is_soa
        else "no such record"
    )
    if why or not result.records:
        show(f"; {name} {type_text(kind)}: {outcome}: {result.why}")
    records = result.records
    if records is not None:
        for record in records.records():
            data = wire.data_text(records.kind, record[12:])
            show(f"{name} {view.config.ttl_s} IN {type_text(records.kind)} {data}")
    if result.alias and kind != wire.CNAME and followed < ALIASES_MAX:
        return _resolve(
            view, text_of(result.alias), kind, location, show, why=why, followed=followed + 1
        )
    return result
