"""The plane as a process: addresses and endpoints of its own Service are kept while it runs and
left when it stops.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.waiting import eventually

from sliceplane.api.scheme import EndpointSlices, IPAddresses, Leases, Resource, Services
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.server.store.types import Key


def stored(plane: ServerPlane, resource: Resource, name: str, namespace: str = "") -> Any:
    record = plane.store.get(Key(resource.storage_key, namespace, name))
    return None if record is None else json.loads(record.body)


def endpoints(plane: ServerPlane) -> list[str]:
    slice_ = stored(plane, EndpointSlices, "kubernetes", "default")
    return [address for endpoint in slice_["endpoints"] for address in endpoint["addresses"]]


async def test_kept_while_it_runs_and_left_when_it_stops(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with ServerPlane(
        PlaneConfig(secure_port=0, data_dir=data, advertise_address="192.0.2.7")
    ) as plane:
        assert endpoints(plane) == ["192.0.2.7"]
        assert stored(plane, IPAddresses, "10.96.0.1")["spec"]["parentRef"]["name"] == "kubernetes"
        lease = stored(plane, Leases, "apiserver-endpoint-192-0-2-7", "kube-system")
        assert lease["spec"]["holderIdentity"] == "192.0.2.7"
        await plane.client("tester").delete(IPAddresses, "", "10.96.0.1")
        assert stored(plane, IPAddresses, "10.96.0.1") is None
        await eventually(lambda: stored(plane, IPAddresses, "10.96.0.1"))
    async with ServerPlane(PlaneConfig(secure_port=0, data_dir=data)) as again:
        assert endpoints(again) == [], "the server left before it stopped"
        assert stored(again, Leases, "apiserver-endpoint-192-0-2-7", "kube-system") is None
        assert stored(again, Services, "kubernetes", "default")["spec"]["clusterIP"] == "10.96.0.1"
