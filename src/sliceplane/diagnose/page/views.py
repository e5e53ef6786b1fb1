"""Each view of the page: what the model holds, beside what the engines answered, and the command
that prints the same.

An *answered* question is a document of the command's own ``--output json`` with the time at which
it was asked, or the sentence that says why there is no answer; ``None``: it is being asked for the
first time. Nothing here judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_ZONE, EndpointSlice
from sliceplane.api.findings.wording import count
from sliceplane.diagnose.page.feed import PageView
from sliceplane.diagnose.page.model import BUCKET_S, ENDPOINT_COLUMNS, STATES, ClusterModel
from sliceplane.diagnose.page.tables import PageTable, Row, table_of
from sliceplane.diagnose.page.zones import ZoneBook

LEAVING_MAX: Final = 20
#: beside what else is so now
DRAINS_SHOWN: Final = 5
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
SLICE_COLUMNS: Final = ("name", "endpoints", "ready", "family", "ports", "version")


class Answered(msgspec.Struct, frozen=True):
    """``document`` is what the command writes as JSON, of ``lint`` what ``diagnose.page.attention``
    keeps; ``problem`` is why there is none.
    """

    at: float
    document: Any = None
    problem: str = ""

    def part(self) -> dict[str, Any]:
        return {"at": self.at, "answer": self.document, "problem": self.problem}


def part_of(answered: Answered | None) -> dict[str, Any] | None:
    return None if answered is None else answered.part()


class Views:
    """Makes models of views.  Owned by whoever owns the model; remembers only what it need not make
    twice.
    """

    def __init__(self, model: ClusterModel, namespace: str = "") -> None:
        """*namespace*: what is shown is only of it; "": of all."""
        self._model = model
        self._namespace = namespace
        self._book = ZoneBook()
        #: of each Service: what its row was made of, and the row
        self._rows: dict[str, tuple[tuple[Any, ...], tuple[Row, ...]]] = {}

    # Views

    def now(
        self,
        lint: Answered | None,
        drift: Answered | None,
        drains: Answered | None,
        held: Iterable[Any],
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
            "guards": [item.as_document() for item in held],
            "drains": _rows_of(drains, "going")[:DRAINS_SHOWN],
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
            made_of = (model.services[key], model.touched(key), worst.get(key, ""), bucket)
            known = self._rows.get(key)
            if known is None or known[0] != made_of:
                row = self._service_row(key, made_of[2], now)
                known = (made_of, known[1] if known is not None and known[1][0] == row else (row,))
            rows[key] = known
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
        """*key*: of one Service, "" of all."""
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
        told = {row["node"]: row for row in _rows_of(drift, "nodes")}
        names = [*told, *(name for name in sorted(model.nodes) if name not in told)]
        rows = [_node_row(name, told.get(name), model.nodes.get(name)) for name in names]
        parts = {
            "at": None if drift is None else drift.at,
            "problem": "" if drift is None else drift.problem,
            "findings": _rows_of(drift, "findings"),
            "notLookedAt": _rows_of(drift, "notLookedAt"),
        }
        return PageView(
            "nodes", "sliceplane drift", parts, {"nodes": table_of(NODE_COLUMNS, 1, rows)}
        )

    def drains(self, drains: Answered | None) -> PageView:
        going = _rows_of(drains, "going")
        pod = going[0]["pod"] if going else "NAMESPACE/POD"
        return PageView(
            "drains", f"sliceplane drain pod {pod} --wait-only", {"drains": part_of(drains)}, {}
        )

    def timeline(self, key: str, answered: Answered | None, since: str) -> PageView:
        namespace, _, name = key.partition("/")
        command = (
            f"sliceplane timeline service {name or 'NAME'} -n {namespace or 'NAMESPACE'} --since "
            f"{since}"
        )
        known = [] if key else sorted(self._model.services)[:1000]
        parts = {"service": key, "since": since, "timeline": part_of(answered), "services": known}
        return PageView("timeline", command, parts, {})

    def trace(self) -> PageView:
        """The form; its answer is asked for by itself."""
        model = self._model
        parts = {"nodes": sorted(model.nodes)[:500], "services": sorted(model.services)[:1000]}
        return PageView(
            "trace", "sliceplane trace --from node/NODE --to SERVICE.NAMESPACE:PORT", parts, {}
        )

    def what_if(self, key: str) -> PageView:
        """The form for the Service *key*, or of whichever; its answer is asked for by itself."""
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

    def _command(self, words: str) -> str:
        return f"{words} -n {self._namespace}" if self._namespace else words

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
    """A list of the answer's document; [] without one."""
    if answered is None or answered.document is None:
        return []
    found: list[Any] = answered.document[member]
    return found


def _attention(lint: Answered | None) -> dict[str, Any] | None:
    """The answer without what is only for the Services' rows."""
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
        "selector": spec.selector or {},
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


def _node_row(name: str, told: Mapping[str, Any] | None, node: Node | None) -> Row:
    zone = (node.metadata.labels or {}).get(LABEL_ZONE, "") if node is not None else ""
    ready = node.ready_condition if node is not None else None
    kubelet = {"True": "ready", "False": "not ready", "Unknown": "silent"}.get(
        ready.status if ready is not None else "", "no Node" if node is None else ""
    )
    if told is None:
        return (name, "not looked at", zone, kubelet, 0, -1.0, "", "", "")
    ago = told["secondsSinceReport"]
    behind = (
        f"{count(told['objectsBehind'], 'object')}, {told['secondsBehind']:.0f} s"
        if told["objectsBehind"]
        else ""
    )
    return (
        name,
        told["state"],
        zone,
        kubelet,
        told["revision"],
        -1.0 if ago is None else ago,
        behind,
        told["cache"],
        told["kernel"],
    )
