"""Fields of features that are off: dropped when new, kept where they were used, there again when it
is on again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.gates import Gates, Release
from sliceplane.api.scheme import EndpointSlices, EndpointSlicesV1beta1, Services
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry

GATED = [
    ("EndpointSliceNodeName", None, {"nodeName": "n1"}, {}),
    (
        "EndpointSliceTerminatingCondition",
        (1, 25),
        {"conditions": {"ready": True, "serving": True, "terminating": False}},
        {"conditions": {"ready": True}},
    ),
    ("TopologyAwareHints", (1, 32), {"hints": {"forZones": [{"name": "z"}]}}, {}),
    (
        "PreferSameTrafficDistribution",
        (1, 34),
        {"hints": {"forNodes": [{"name": "n"}], "forZones": [{"name": "z"}]}},
        {"hints": {"forZones": [{"name": "z"}]}},
    ),
]


def without(gate: str, release: Release | None) -> Gates:
    return Gates.parse(f"{gate}=false", release) if release else Gates.parse(f"{gate}=false")


def restart(api: Any, gates: Gates) -> None:
    """The same store under a server with other gates."""
    api.registry = Registry(api.store, rng=Rng(7), config=RegistryConfig(gates=gates))


def body(*endpoints: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a"},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [f"10.0.0.{index}"], **each} for index, each in enumerate(endpoints, 1)
        ],
        **rest,
    }


def told(document: Any) -> list[dict[str, Any]]:
    """The endpoints without what every one has."""
    members = (
        {name: value for name, value in each.items() if name != "addresses"}
        for each in document["endpoints"]
    )
    return [
        {name: value for name, value in each.items() if (name, value) != ("conditions", {})}
        for each in members
    ]


@pytest.mark.parametrize(("gate", "release", "full", "bare"), GATED, ids=[row[0] for row in GATED])
class TestEndpoints:
    def test_dropped_from_new_slices(
        self, api: Any, gate: str, release: Release, full: Any, bare: Any
    ) -> None:
        restart(api, without(gate, release))
        assert told(json.loads(api.create(EndpointSlices, body(full)).body)) == [bare]
        read = api.get(EndpointSlices, "a")
        assert told(
            json.loads(api.update(EndpointSlices, "a", {**read, **body(full, full)}).body)
        ) == [bare, bare]
        patched = api.patch(EndpointSlices, "a", {"endpoints": body(full)["endpoints"]})
        assert told(json.loads(patched.body)) == [bare]

    def test_kept_where_it_was_used_until_it_is_used_no_more(
        self, api: Any, gate: str, release: Release, full: Any, bare: Any
    ) -> None:
        api.create(EndpointSlices, body(full, {}))
        restart(api, without(gate, release))
        read = api.get(EndpointSlices, "a")
        assert told(read) == [full, {}], "reading shows what is stored"
        assert api.update(EndpointSlices, "a", read).revision == 0
        moved = api.update(EndpointSlices, "a", {**read, **body({}, full)})
        assert told(json.loads(moved.body)) == [{}, full]
        gone = api.update(EndpointSlices, "a", {**read, **body(bare)})
        assert told(json.loads(gone.body)) == [bare]
        late = api.update(EndpointSlices, "a", {**read, **body(full)})
        assert told(json.loads(late.body)) == [bare]

    def test_off_and_on_again(
        self, api: Any, gate: str, release: Release, full: Any, bare: Any
    ) -> None:
        api.create(EndpointSlices, body(full))
        before = api.get(EndpointSlices, "a")
        restart(api, without(gate, release))
        api.create(EndpointSlices, body(full, metadata={"name": "b"}))
        restart(api, Gates())
        assert api.get(EndpointSlices, "a") == before
        assert told(
            json.loads(api.update(EndpointSlices, "b", body(full, metadata={"name": "b"})).body)
        ) == [full]


def test_a_node_name_written_through_v1beta1_stays_in_the_topology(api: Any) -> None:
    restart(api, without("EndpointSliceNodeName", None))
    topology = {"kubernetes.io/hostname": "n1"}
    made = api.create(EndpointSlicesV1beta1, body({"nodeName": "n1", "topology": topology}))
    assert told(json.loads(made.body)) == [{"topology": topology}]
    assert told(api.get(EndpointSlices, "a")) == [{"deprecatedTopology": topology}]


def service(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], **spec}}


def test_traffic_distribution_of_services(api: Any) -> None:
    restart(api, Gates((1, 29)))
    made = json.loads(api.create(Services, service(trafficDistribution="PreferClose")).body)
    assert "trafficDistribution" not in made["spec"]
    patched = api.patch(Services, "s", {"spec": {"trafficDistribution": "PreferClose"}})
    assert patched.revision == 0, "what is dropped is no change"
    restart(api, Gates())
    api.patch(Services, "s", {"spec": {"trafficDistribution": "PreferSameZone"}})
    restart(api, Gates((1, 29)))
    kept = json.loads(api.patch(Services, "s", {"metadata": {"labels": {"a": "b"}}}).body)
    assert kept["spec"]["trafficDistribution"] == "PreferSameZone"


def test_values_of_a_feature_that_is_off(api: Any) -> None:
    restart(api, Gates((1, 32)))
    for value in ("PreferSameNode", "Nonsense"):
        error = api.fails("create", Services, service(trafficDistribution=value))
        assert error.message.endswith(
            f'spec.trafficDistribution: Unsupported value: "{value}": supported values: '
            '"PreferClose"'
        )
    restart(api, Gates())
    api.create(Services, service(trafficDistribution="PreferSameNode"))
    restart(api, Gates((1, 32)))
    api.patch(Services, "s", {"metadata": {"labels": {"a": "b"}}})
    api.patch(Services, "s", {"spec": {"trafficDistribution": "PreferClose"}})
    assert (
        api.fails("patch", Services, "s", {"spec": {"trafficDistribution": "PreferSameNode"}}).code
        == 422
    )


def test_the_servers_own_slice_needs_the_gate(make_api: Any) -> None:
    address = {"advertise_address": "192.0.2.1", "advertise_port": 6443}
    assert make_api(**address).names(EndpointSlices) == ["default/kubernetes"]
    assert make_api(**address, gates=Gates.parse("EndpointSlice=false")).names(EndpointSlices) == []
