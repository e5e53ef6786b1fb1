"""Whatever a registry accepted survives both versions, both media types, and writing back what was
read.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.scheme import EndpointSlices, EndpointSlicesV1beta1, Resource
from sliceplane.server.documents import protobuf

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"

names = st.sampled_from(["n1", "n2", "a-b"])
flags = st.dictionaries(st.sampled_from(["ready", "serving", "terminating"]), st.booleans())
hints = st.fixed_dictionaries(
    {},
    optional={
        "forZones": st.lists(names, unique=True, max_size=2).map(
            lambda each: [{"name": name} for name in each]
        ),
        "forNodes": st.lists(names, unique=True, max_size=2).map(
            lambda each: [{"name": name} for name in each]
        ),
    },
)
# An empty host name is the one thing that reads back as another: the node's name takes its place.
topologies = st.fixed_dictionaries(
    {},
    optional={
        HOST: names,
        ZONE: names | st.just(""),
        "rack": names | st.just(""),
        "example.com/row": names,
    },
)
endpoints = st.fixed_dictionaries(
    {"addresses": st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), min_size=1, max_size=2)},
    optional={
        "conditions": flags,
        "hostname": names,
        "nodeName": names,
        "hints": hints,
        "topology": topologies,
        "zone": names,
    },
)
ports = st.lists(
    st.fixed_dictionaries(
        {"name": names},
        optional={
            "port": st.integers(0, 65535),
            "protocol": st.sampled_from(["TCP", "UDP"]),
            "appProtocol": names,
        },
    ),
    max_size=3,
    unique_by=lambda port: port["name"],
)


@pytest.mark.parametrize("storage", ["field", "annotation"])
@pytest.mark.parametrize("version", [EndpointSlices, EndpointSlicesV1beta1], ids=["v1", "v1beta1"])
@given(st.lists(endpoints, max_size=4), ports)
def test_nothing_is_lost(
    make_api: Any, version: Resource, storage: str, points: Any, ports: Any
) -> None:
    api = make_api(topology_storage=storage)
    body = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": points, "ports": ports}
    made = json.loads(api.create(version, body).body)
    both = {each.version: api.get(each, "a") for each in (EndpointSlices, EndpointSlicesV1beta1)}
    assert both[version.version] == made
    for each in (EndpointSlices, EndpointSlicesV1beta1):
        document = both[each.version]
        wired = protobuf.decode(protobuf.encode(document))
        assert api.update(each, "a", wired).revision == 0, (
            f"{each.version} changed on its way through protobuf"
        )
        assert api.update(each, "a", document).revision == 0, (
            f"{each.version} was written back and counted as a change"
        )
        assert api.patch(each, "a", {}).revision == 0
    again = json.loads(api.create(version, {**made, "metadata": {"name": "b"}}).body)
    assert again["endpoints"] == made["endpoints"]
