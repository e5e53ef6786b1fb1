"""Three zones without kube-proxy: in each an Envoy with HTTP clients and a program of grpcio, which our
xDS server leads to twelve endpoints a zone. Two Services with measured zones, whose demand is what
these clients report, and beside them the same with ``PreferSameZone``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.peers.measured_town import ZONES, addresses_of, node_of, pod_of
from tests.peers.test_envoy import running
from tests.ports import free_port
from tests.waiting import eventually
from tests.xds.conftest import Served, xds_server

from sliceplane.api.meta import Document
from sliceplane.client import HttpClient
from sliceplane.consume.demand import MEASURED
from sliceplane.consume.progress import ANNOTATION_DEMAND
from sliceplane.testing import Plane
from sliceplane.watch.io import kubeconfig
from sliceplane.xds.bootstrap import BootstrapOptions, grpc_bootstrap

#: of the Lease with the xDS server's reports
SERVER: Final = "mesh"
#: Services by who calls them: with measured zones, and with ``PreferSameZone``
SERVICES: Final = {"envoy": ("shop", "shop-near"), "grpc": ("echo", "echo-near")}
#: pairs of an endpoint and a zone of clients
Counts = dict[tuple[str, str], int]


class Caller:
    """``tests.peers.measured_callers``, with its targets' places: Service and zone."""

    def __init__(
        self, process: asyncio.subprocess.Process, places: Sequence[tuple[str, str]]
    ) -> None:
        self._process = process
        self._places = places

    async def take(self, rates: Mapping[tuple[str, str], float]) -> dict[str, Counts]:
        """Sets the rates by place; returns the calls since the last time, by Service."""
        assert self._process.stdin is not None, "asked for"
        assert self._process.stdout is not None, "asked for"
        line = " ".join(str(rates.get(place, 0.0)) for place in self._places)
        self._process.stdin.write(f"{line}\n".encode())
        told = json.loads(await self._process.stdout.readline())
        found: dict[str, Counts] = {}
        for (service, zone), counts in zip(self._places, told, strict=True):
            for address, count in counts.items():
                found.setdefault(service, {})[address, zone] = count
        return found


class Mesh:
    def __init__(self, plane: Plane, client: HttpClient, callers: Sequence[Caller]) -> None:
        self.plane = plane
        self.client = client
        self._callers = callers
        self._rates: dict[tuple[str, str], float] = {}
        #: calls that failed, by what went wrong
        self.failed: dict[str, int] = {}

    async def rates(self, by_service: Mapping[str, float], shares: Sequence[float]) -> None:
        """Sets the calls a second to each Service, and the share of each zone."""
        self._rates = {
            (service, zone): rate * share
            for service, rate in by_service.items()
            for zone, share in zip(ZONES, shares, strict=True)
        }
        await self.counts()

    async def counts(self) -> dict[str, Counts]:
        """Calls since the last time by Service, endpoint and zone of the client."""
        taken = await asyncio.gather(*(caller.take(self._rates) for caller in self._callers))
        found: dict[str, Counts] = {}
        for service, counts in (item for each in taken for item in each.items()):
            for (address, zone), count in counts.items():
                if address.startswith("!"):
                    self.failed[address] = self.failed.get(address, 0) + count
                else:
                    found.setdefault(service, {})[address, zone] = count
        return found

    def annotations(self, service: str) -> dict[str, str]:
        return dict(self.plane.get("services", service)["metadata"].get("annotations", {}))

    def condition(self, service: str) -> tuple[str, str]:
        status = self.plane.get("services", service).get("status", {})
        for each in status.get("conditions", []):
            if each["type"] == "TrafficDistributionMeasured":
                return each["status"], each["reason"]
        return "", ""


def service_of(name: str, protocol: str, port: int, *, is_measured: bool) -> Document:
    annotations = {
        "service.kubernetes.io/topology-mode": MEASURED,
        ANNOTATION_DEMAND: "requests",
    }
    ports = [{"name": "main", "port": 80, "targetPort": port, "appProtocol": protocol}]
    near = {} if is_measured else {"trafficDistribution": "PreferSameZone"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "annotations": annotations if is_measured else {}},
        "spec": {"selector": {"app": "web"}, "ports": ports, **near},
    }


def with_listeners(document: Document, ports: Mapping[str, int]) -> Document:
    """Returns the bootstrap with a listener of its own for each Service, and a route to its cluster."""
    http = "type.googleapis.com/envoy.extensions.filters"
    listeners: list[Any] = []
    for service, port in ports.items():
        route = {"match": {"prefix": "/"}, "route": {"cluster": f"default/{service}:main"}}
        manager = {
            "@type": f"{http}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": service,
            "route_config": {
                "validate_clusters": False,
                "virtual_hosts": [{"name": service, "domains": ["*"], "routes": [route]}],
            },
            "http_filters": [
                {"name": "router", "typed_config": {"@type": f"{http}.http.router.v3.Router"}}
            ],
        }
        listeners.append(
            {
                "name": service,
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
            }
        )
    static = {**document["static_resources"], "listeners": listeners}
    return {**document, "static_resources": static}


@asynccontextmanager
async def caller(
    kind: str, places: Sequence[tuple[str, str]], targets: Sequence[str], **variables: str
) -> AsyncIterator[Caller]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.peers.measured_callers", kind, *targets),
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Caller(process, places)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def mesh(folder: Path) -> AsyncIterator[Mesh]:
    """In the network of ``benchmarks.tools.loopback``, where ``benchmarks.tools.pods`` run."""
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(Plane())
        pods = [
            pod_of(f"web-{zone[-1]}-{index}", zone, address)
            for number, zone in enumerate(ZONES)
            for index, address in enumerate(addresses_of(number))
        ]
        services = [
            service_of(name, protocol, port, is_measured=is_measured)
            for kind, protocol, port in (("envoy", "http", 8080), ("grpc", "grpc", 9090))
            for name, is_measured in zip(SERVICES[kind], (True, False), strict=True)
        ]
        await asyncio.to_thread(plane.apply, [*map(node_of, ZONES), *services, *pods])
        for names in SERVICES.values():
            for name in names:
                await plane.until(lambda name=name: len(plane.endpoints(name)) == len(pods))
        client = await stack.enter_async_context(HttpClient(kubeconfig.load(plane.kubeconfig)))
        served = await stack.enter_async_context(xds_server(client, report_name=SERVER))
        callers = [
            await stack.enter_async_context(_http_clients(folder, served, stack)),
            *[await stack.enter_async_context(_grpc_client(folder, served, z)) for z in ZONES],
        ]
        made = Mesh(plane, client, callers)
        await made.rates({name: 10.0 for names in SERVICES.values() for name in names}, (1, 1, 1))
        await eventually(lambda: _is_served(made))
        made.failed.clear()
        yield made


async def _is_served(made: Mesh) -> bool:
    await asyncio.sleep(1)
    found = await made.counts()
    places = {(service, zone) for service, counts in found.items() for _, zone in counts}
    return len(places) == len(ZONES) * sum(map(len, SERVICES.values()))


def _options(served: Served, kind: str, zone: str, **members: Any) -> BootstrapOptions:
    return served.wish(node_id=f"{kind}-{zone}", zone=zone, **members)


@asynccontextmanager
async def _http_clients(
    folder: Path, served: Served, stack: AsyncExitStack
) -> AsyncIterator[Caller]:
    """One program, which calls the Envoys of all zones: their locations count."""
    places: list[tuple[str, str]] = []
    targets: list[str] = []
    for zone in ZONES:
        ports = {service: free_port() for service in SERVICES["envoy"]}
        options = _options(served, "envoy", zone, admin_port=free_port(), load_reports=True)
        await stack.enter_async_context(
            running(folder, options, lambda document, ports=ports: with_listeners(document, ports))
        )
        places += [(service, zone) for service in ports]
        targets += [f"127.0.0.1:{port}" for port in ports.values()]
    async with caller("http", places, targets) as made:
        yield made


@asynccontextmanager
async def _grpc_client(folder: Path, served: Served, zone: str) -> AsyncIterator[Caller]:
    file = folder / f"grpc-{zone}.json"
    file.write_text(json.dumps(grpc_bootstrap(_options(served, "grpc", zone))))
    places = [(service, zone) for service in SERVICES["grpc"]]
    targets = [f"xds:///{service}.default:80" for service in SERVICES["grpc"]]
    async with caller("grpc", places, targets, GRPC_XDS_BOOTSTRAP=str(file)) as made:
        yield made
