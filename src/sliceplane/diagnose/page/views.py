"""Each view of the page: the content of the model, the engines' answers, and the command that
prints the same.

An *answered* query is a document of the command's own ``--output json`` with the time of the query,
or a sentence why there is no answer; ``None``: it is queried for the first time. Nothing here
judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Final

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_ZONE, EndpointSlice
from sliceplane.api.findings.wording import count
from sliceplane.api.selectors.adoption import selector_of
from sliceplane.diagnose.page.feed import PageView
from sliceplane.diagnose.page.model import BUCKET_S, ENDPOINT_COLUMNS, STATES, ClusterModel
from sliceplane.diagnose.page.tables import PageTable, Row, table_of
from sliceplane.diagnose.page.zones import ZoneBook

LEAVING_MAX: Final = 20
#: drains in the first view
DRAINS_MAX: Final = 5
SERVICE_COLUMNS: Final = (
    "namespace",
    "name",
    "type",
    "address",
    "ports",
    "ready",
    "endpoints",
    "slices",
    "zones",
    "finding",
    "changes",
)
NODE_COLUMNS: Final = (
    "node",
    "state",
    "zone",
    "kubelet",
    "version",
    "told",
    "behind",
    "cache",
    "kernel",
)
#: members of the document of a relay
RELAY_COLUMNS: Final = (
    "name",
    "state",
    "level",
    "secondsSilent",
    "watches",
    "nodes",
    "parent",
    "zone",
    "secondsSinceReport",
)
SLICE_COLUMNS: Final = ("name", "endpoints", "ready", "family", "ports", "version")


class Answered(msgspec.Struct, frozen=True):
    """``document`` is the command's JSON, for ``lint`` the document of ``diagnose.page.attention``;
    ``problem`` is the reason if there is none.
    """

    at: float
    document: Any = None
    problem: str = ""

    def part(self) -> dict[str, Any]:
        return {"at": self.at, "answer": self.document, "problem": self.problem}


def part_of(answered: Answered | None) -> dict[str, Any] | None:
    return None if answered is None else answered.part()


class Views:
    """Builds the models of views. Owned by the owner of the model; caches only derived values."""

    def __init__(self, model: ClusterModel, namespace: str = "") -> None:
        """*namespace*: the only one that views show; "": all."""
        self._model = model
        self._namespace = namespace
        self._book = ZoneBook()
        #: inputs of the row, and the row, by Service
        self._rows: dict[str, tuple[tuple[Any, ...], tuple[Row, ...]]] = {}

    # Views

    def now(
        self,
        lint: Answered | None,
        drift: Answered | None,
        drains: Answered | None,
        retained: Iterable[Any],
    ) -> PageView:
        model = self._model
        freshness = Counter(row["state"] for row in _rows_of(drift, "nodes"))
        states: Counter[str] = Counter()
        for service in model.services:
            states.update(model.sums(service).states)
        parts = {
            "lint": _attention(lint),
            "sums": {
                "services": len(model.services),
                "nodes": len(model.nodes),
                "zones": len([zone for zone in model.zones() if zone]),
                "endpoints": {state: states[state] for state in STATES},
            },
            "freshness": {
                "at": None if drift is None else drift.at,
                "problem": "" if drift is None else drift.problem,
                "states": dict(sorted(freshness.items())),
                "nodes": [
                    row
                    for row in _rows_of(drift, "nodes")
                    if row["state"] not in ("in step", "emulated")
                ][:20],
                "findings": _rows_of(drift, "findings"),
                "notLookedAt": _rows_of(drift, "notLookedAt"),
                "relays": dict(Counter(row["state"] for row in _rows_of(drift, "relays"))),
            },
            "activity": [
                {
                    "at": entry.at,
                    "until": entry.until,
                    "kind": entry.kind,
                    "name": entry.name,
                    "what": entry.what,
                }
                for entry in model.activity
            ],
            "guards": [item.as_document() for item in retained],
            "drains": _rows_of(drains, "going")[:DRAINS_MAX],
            "drainCount": len(_rows_of(drains, "going")),
        }
        return PageView("now", self._command("sliceplane status"), parts, {})

    def services(self, lint: Answered | None, now: float) -> PageView:
        worst: dict[str, str] = (
            {} if lint is None or lint.document is None else lint.document["worst"]
        )
        rows = {}
        model = self._model
        for key in sorted(model.services):
            bucket = int(now // BUCKET_S) if model.is_lively(key) else 0
            inputs = (model.services[key], model.touched(key), worst.get(key, ""), bucket)
            cached = self._rows.get(key)
            if cached is None or cached[0] != inputs:
                row = self._service_row(key, inputs[2], now)
                cached = (
                    inputs,
                    cached[1] if cached is not None and cached[1][0] == row else (row,),
                )
            rows[key] = cached
        self._rows = rows
        problem = "" if lint is None else lint.problem
        table = PageTable(SERVICE_COLUMNS, 2, {key: chunk for key, (_, chunk) in rows.items()})
        return PageView(
            "services", self._command("sliceplane lint"), {"problem": problem}, {"services": table}
        )

    def service(
        self,
        key: str,
        explained: Answered | None,
        drift: Answered | None,
        traced: Answered | None,
        client: str,
    ) -> PageView:
        model = self._model
        namespace, _, name = key.partition("/")
        slices = model.slices(key)
        sums = model.sums(key)
        service = model.services.get(key)
        parts: dict[str, Any] = {
            "service": None if service is None else _service_part(service),
            "explain": part_of(explained),
            "sums": {
                "states": {state: sums.states.get(state, 0) for state in STATES},
                "slices": sums.slices,
                "zones": sums.zones,
            },
            "fresh": _fresh(drift),
            "trace": part_of(traced),
            "client": client,
            "clients": [
                {
                    "node": node,
                    "zone": (model.nodes[node].metadata.labels or {}).get(LABEL_ZONE, ""),
                }
                for node in sorted(model.nodes)[:500]
            ],
        }
        tables = {
            "endpoints": PageTable(
                ENDPOINT_COLUMNS, 2, {item.metadata.name: model.rows(item) for item in slices}
            ),
            "slices": table_of(
                SLICE_COLUMNS,
                1,
                [_slice_row(item, model.part(item).states["ready"]) for item in slices],
            ),
        }
        return PageView(
            "service", f"sliceplane explain service {name} -n {namespace}", parts, tables
        )

    def zones(self, key: str) -> PageView:
        """Builds the view of zones. *key*: of one Service, "" of all."""
        model = self._model
        services = sorted(model.services) if not key else [key]
        matrix = self._book.matrix(model, services)
        parts = {
            "service": key,
            "services": matrix.services,
            "nodes": matrix.nodes,
            "shares": matrix.shares,
            "load": matrix.load,
            "cross": matrix.cross,
            "dropped": matrix.dropped,
            "demand": matrix.demand if key else {},
            "leaving": matrix.leaving[:LEAVING_MAX],
            "endpoints": dict(
                sorted(
                    sum(
                        (Counter(model.sums(service).zones) for service in services), Counter()
                    ).items()
                )
            ),
        }
        zone = next((zone for zone in model.zones() if zone), "ZONE")
        return PageView("zones", f"sliceplane explain zone {zone}", parts, {})

    def nodes(self, drift: Answered | None) -> PageView:
        model = self._model
        reports = {row["node"]: row for row in _rows_of(drift, "nodes")}
        names = [*reports, *(name for name in sorted(model.nodes) if name not in reports)]
        rows = [_node_row(name, reports.get(name), model.nodes.get(name)) for name in names]
        parts = {
            "at": None if drift is None else drift.at,
            "problem": "" if drift is None else drift.problem,
            "findings": _rows_of(drift, "findings"),
            "notLookedAt": _rows_of(drift, "notLookedAt"),
        }
        tables = {
            "nodes": table_of(NODE_COLUMNS, 1, rows),
            "relays": table_of(
                RELAY_COLUMNS, 1, map(itemgetter(*RELAY_COLUMNS), _rows_of(drift, "relays"))
            ),
        }
        return PageView("nodes", "sliceplane drift", parts, tables)

    def drains(self, drains: Answered | None) -> PageView:
        draining = _rows_of(drains, "going")
        pod = draining[0]["pod"] if draining else "NAMESPACE/POD"
        return PageView(
            "drains", f"sliceplane drain pod {pod} --wait-only", {"drains": part_of(drains)}, {}
        )

    def timeline(self, key: str, answered: Answered | None, since: str) -> PageView:
        namespace, _, name = key.partition("/")
        command = (
            f"sliceplane timeline service {name or 'NAME'} -n {namespace or 'NAMESPACE'} --since "
            f"{since}"
        )
        names = [] if key else sorted(self._model.services)[:1000]
        parts = {"service": key, "since": since, "timeline": part_of(answered), "services": names}
        return PageView("timeline", command, parts, {})

    def trace(self) -> PageView:
        """Builds the form; the page requests its answer separately."""
        model = self._model
        parts = {"nodes": sorted(model.nodes)[:500], "services": sorted(model.services)[:1000]}
        return PageView(
            "trace", "sliceplane trace --from node/NODE --to SERVICE.NAMESPACE:PORT", parts, {}
        )

    def what_if(self, key: str) -> PageView:
        """Builds the form for the Service *key*, "" for any; the page requests its answer
        separately.
        """
        model = self._model
        service = model.services.get(key)
        parts = {
            "service": key,
            "services": sorted(model.services)[:1000],
            "zones": [zone for zone in model.zones() if zone],
            "ready": model.sums(key).states.get("ready", 0),
            "distribution": "" if service is None else service.spec.traffic_distribution or "",
        }
        return PageView(
            "what-if", f"sliceplane what-if {key or 'NAMESPACE/NAME'} --set KEY=VALUE", parts, {}
        )

    # Rows

    def _command(self, command: str) -> str:
        return f"{command} -n {self._namespace}" if self._namespace else command

    def _service_row(self, key: str, finding: str, now: float) -> Row:
        service, sums = self._model.services[key], self._model.sums(key)
        spec = service.spec
        return (
            service.metadata.namespace,
            service.metadata.name,
            spec.type,
            _address(service),
            ", ".join(f"{port.port}/{port.protocol}" for port in spec.ports or ()),
            sums.states.get("ready", 0),
            sum(sums.states.values()),
            sums.slices,
            len([zone for zone in sums.zones if zone]),
            finding,
            self._model.changes(key, now),
        )


def _rows_of(answered: Answered | None, member: str) -> list[Any]:
    """Returns a list of the answer's document; [] without one."""
    if answered is None or answered.document is None:
        return []
    rows: list[Any] = answered.document[member]
    return rows


def _attention(lint: Answered | None) -> dict[str, Any] | None:
    """Returns the answer without the members for the Services' rows."""
    part = part_of(lint)
    if part is None or part["answer"] is None:
        return part
    answer = {
        name: member for name, member in part["answer"].items() if name not in ("sums", "worst")
    }
    return {**part, "sums": part["answer"]["sums"], "answer": answer}


def _fresh(drift: Answered | None) -> dict[str, Any]:
    """Counts the nodes that are in step, and names the first that are not; emulated ones are
    neither.
    """
    everyone = _rows_of(drift, "nodes")
    rows = [row for row in everyone if row["state"] != "emulated"]
    late = [row for row in rows if row["state"] != "in step"]
    return {
        "known": drift is not None,
        "problem": "" if drift is None else drift.problem,
        "nodes": len(rows),
        "emulated": len(everyone) - len(rows),
        "late": late[:5],
        "lateCount": len(late),
        "untold": sum(row["state"] == "never told" for row in rows),
        "kernel": dict(sorted(Counter(row["kernel"] for row in rows).items())),
    }


def _service_part(service: Service) -> dict[str, Any]:
    spec = service.spec
    return {
        "type": spec.type,
        "address": _address(service),
        "ports": [
            {
                "name": port.name,
                "port": port.port,
                "protocol": port.protocol,
                "target": str(port.target_port or ""),
            }
            for port in spec.ports or ()
        ],
        "selector": selector_of(service),
        "distribution": spec.traffic_distribution or "",
        "internalPolicy": spec.internal_traffic_policy or "",
        "affinity": spec.session_affinity,
    }


def _address(service: Service) -> str:
    spec = service.spec
    return (
        spec.external_name
        if spec.type == "ExternalName"
        else ", ".join(spec.cluster_ips or ()) or spec.cluster_ip
    )


def _slice_row(item: EndpointSlice, ready: int) -> Row:
    ports = ", ".join(f"{port.port or 'all'}/{port.protocol or 'TCP'}" for port in item.ports or ())
    return (
        item.metadata.name,
        len(item.endpoints or ()),
        ready,
        item.address_type,
        ports,
        item.metadata.resource_version,
    )


def _node_row(name: str, report: Mapping[str, Any] | None, node: Node | None) -> Row:
    zone = (node.metadata.labels or {}).get(LABEL_ZONE, "") if node is not None else ""
    ready = node.ready_condition if node is not None else None
    kubelet = {"True": "ready", "False": "not ready", "Unknown": "silent"}.get(
        ready.status if ready is not None else "", "no Node" if node is None else ""
    )
    if report is None:
        return (name, "not looked at", zone, kubelet, 0, -1.0, "", "", "")
    age_s = report["secondsSinceReport"]
    behind = (
        f"{count(report['objectsBehind'], 'object')}, {report['secondsBehind']:.0f} s"
        if report["objectsBehind"]
        else ""
    )
    return (
        name,
        report["state"],
        zone,
        kubelet,
        report["revision"],
        -1.0 if age_s is None else age_s,
        behind,
        report["cache"],
        report["kernel"],
    )
