"""Compares the endpoints that an Envoy uses, by its admin pages, with the catalog of the xDS
server.

``/server_info`` has Envoy's location, as Envoy sends it to the xDS server. The endpoints in use
(``/clusters?format=json``) are compared, by cluster, with the assignment that the server would send
there. Clusters that the API has and Envoy lacks are counted, not judged: Envoy may be configured
for some namespaces only. Envoy is always a little behind, so only a difference that two successive
reads show counts (``confirm_differences``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sliceplane.api.findings.wording import CHOICES_MAX, count, some
from sliceplane.kit.columns import table
from sliceplane.xds.catalog import XdsCatalog
from sliceplane.xds.endpoints import draining_by_endpoint
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, parse_key
from sliceplane.xds.resource import XdsClient

ROWS_MAX: Final = 200
#: seconds until a difference is checked again
RECHECK_DELAY_S: Final = 2.0


class NoAdminPages(Exception):
    """The pages of an Envoy cannot be read; the text is a sentence."""


class EnvoyFacts(msgspec.Struct, frozen=True):
    """``node``, ``zone``: as Envoy claims them. ``clusters``: endpoints as ``ADDRESS:PORT`` by
    cluster, for clusters with names of our xDS server.
    """

    id: str
    node: str
    zone: str
    clusters: Mapping[str, frozenset[str]]


class EnvoyRow(NamedTuple):
    """``lacks``: endpoints of the API that Envoy does not use; ``keeps``: endpoints in use that the
    API does not have.
    """

    cluster: str
    state: Literal["equal", "differs", "not in the API"]
    lacks: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


class EnvoyDrift(msgspec.Struct, frozen=True):
    """``rows``: clusters that differ first, then by name. ``others``: how many clusters of the API
    Envoy does not have.
    """

    envoy: EnvoyFacts
    rows: tuple[EnvoyRow, ...]
    others: int

    @property
    def differs(self) -> bool:
        return any(row.state != "equal" for row in self.rows)

    def as_document(self) -> dict[str, Any]:
        return {
            "envoy": {"id": self.envoy.id, "node": self.envoy.node, "zone": self.envoy.zone},
            "clusters": [
                {
                    "cluster": row.cluster,
                    "state": row.state,
                    "lacks": list(row.lacks),
                    "keeps": list(row.keeps),
                }
                for row in self.rows
            ],
            "clustersItDoesNotHave": self.others,
        }


def read_envoy(info: Mapping[str, Any], clusters: Mapping[str, Any]) -> EnvoyFacts:
    """Reads the admin pages.  Raises ``NoAdminPages``."""
    try:
        node = info["node"]
        uses = {
            status["name"]: frozenset(_authority(host) for host in status.get("host_statuses", ()))
            for status in clusters.get("cluster_statuses", ())
            if parse_key(status["name"]) is not None
        }
        metadata = node.get("metadata", {})
        zone = node.get("locality", {}).get("zone", "")
        return EnvoyFacts(
            str(node.get("id", "")), str(metadata.get("node_name", "")), str(zone), uses
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise NoAdminPages(
            f"these are no admin pages of Envoy ({type(error).__name__}: {error})"
        ) from error


def _authority(host: Mapping[str, Any]) -> str:
    socket_address = host["address"]["socket_address"]
    return _joined(str(socket_address["address"]), int(socket_address["port_value"]))


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def compare_envoy(envoy: EnvoyFacts, catalog: XdsCatalog) -> EnvoyDrift:
    client = XdsClient(kind="envoy", node=envoy.node, zone=envoy.zone)
    view = catalog.view(client)
    rows = []
    for cluster in sorted(envoy.clusters):
        uses = envoy.clusters[cluster]
        resource = view.get(ASSIGNMENT, cluster)
        if resource is None or view.get(CLUSTER, cluster) is None:
            rows.append(EnvoyRow(cluster, "not in the API", keeps=tuple(sorted(uses))))
            continue
        expected = {_joined(*endpoint) for endpoint in draining_by_endpoint(resource.body)}
        lacks, keeps = tuple(sorted(expected - uses)), tuple(sorted(uses - expected))
        rows.append(EnvoyRow(cluster, "differs" if lacks or keeps else "equal", lacks, keeps))
    ports = {
        str(port.key) for served in catalog.services.values() for port in served.settings.values()
    }
    return _build_drift(envoy, rows, len(ports - envoy.clusters.keys()))


def confirm_differences(first: EnvoyDrift, second: EnvoyDrift) -> EnvoyDrift:
    """Returns the differences that two successive reads both show."""
    before = {row.cluster: row for row in first.rows}
    rows = []
    for row in second.rows:
        earlier = before.get(row.cluster, EnvoyRow(row.cluster, "equal"))
        lacks = tuple(item for item in row.lacks if item in earlier.lacks)
        keeps = tuple(item for item in row.keeps if item in earlier.keeps)
        stays = row.state == earlier.state and (row.state == "not in the API" or lacks or keeps)
        rows.append(
            EnvoyRow(row.cluster, row.state, lacks, keeps)
            if stays
            else EnvoyRow(row.cluster, "equal")
        )
    return _build_drift(second.envoy, rows, second.others)


def _build_drift(envoy: EnvoyFacts, rows: Sequence[EnvoyRow], others: int) -> EnvoyDrift:
    return EnvoyDrift(
        envoy, tuple(sorted(rows, key=lambda row: (row.state == "equal", row.cluster))), others
    )


def as_text(drift: EnvoyDrift) -> str:
    return "\n".join(_lines(drift))


def _lines(drift: EnvoyDrift) -> Iterator[str]:
    envoy = drift.envoy
    location = [
        f"{kind} {name}" for kind, name in (("node", envoy.node), ("zone", envoy.zone)) if name
    ]
    where = f" ({', '.join(location)})" if location else ""
    bad = [row for row in drift.rows if row.state != "equal"]
    good = f"{len(drift.rows) - len(bad)} of {len(drift.rows)} clusters as the API has them"
    yield f"Envoy {envoy.id or 'without a name'}{where}: {good}"
    if drift.others:
        yield f"not among its clusters: {count(drift.others, 'port')} of Services"
    if bad:
        cells = [(row.cluster, row.state, _some(row.lacks), _some(row.keeps)) for row in bad]
        yield from table(
            ("CLUSTER", "STATE", "LACKS", "KEEPS"),
            cells,
            rows_max=ROWS_MAX,
            elsewhere="--output json",
        )


def _some(endpoints: Sequence[str]) -> str:
    return some(list(endpoints), CHOICES_MAX) or "-"
