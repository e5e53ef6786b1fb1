"""Whatever is accepted of Service, Endpoints and EndpointSlice reads back the same through JSON,
YAML, protobuf and, for slices, v1beta1; written back as read it is no change.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointSlicesV1beta1,
    EndpointsObjects,
    Resource,
    Services,
)
from sliceplane.server.documents import protobuf
from sliceplane.server.documents.strict import decode_yaml

names = st.sampled_from(["a", "b-c", "n1"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
metadata = st.fixed_dictionaries(
    {"name": st.just("x")},
    optional={
        "labels": st.dictionaries(names, st.sampled_from(["", "1", "on"]), max_size=2),
        "annotations": st.dictionaries(st.sampled_from(["a", "example.com/b"]), texts, max_size=2),
    },
)
v4 = st.sampled_from(["10.0.0.1", "10.0.0.2", "239.1.1.1", "127.0.0.1", "1.2.3.04"])
v6 = st.sampled_from(["2001:db8::1", "2001:DB8::2", "::1"])
protocols = st.sampled_from(["TCP", "UDP", "SCTP"])
port_numbers = st.integers(-1, 70000) | st.sampled_from([80, 443])
target = st.fixed_dictionaries(
    {}, optional={"kind": st.just("Pod"), "name": names, "uid": texts, "namespace": names}
)
conditions = st.dictionaries(st.sampled_from(["ready", "serving", "terminating"]), st.booleans())
hints = st.fixed_dictionaries(
    {},
    optional={
        each: st.lists(names.map(lambda n: {"name": n}), max_size=2)
        for each in ("forZones", "forNodes")
    },
)
slices = st.fixed_dictionaries(
    {"metadata": metadata, "addressType": st.sampled_from(["IPv4", "IPv6", "FQDN"])},
    optional={
        "endpoints": st.lists(
            st.fixed_dictionaries(
                {"addresses": st.lists(v4 | v6 | st.just("a.example"), min_size=1, max_size=2)},
                optional={
                    "conditions": conditions,
                    "hostname": names,
                    "nodeName": names,
                    "zone": texts,
                    "targetRef": target,
                    "hints": hints,
                },
            ),
            max_size=3,
        ),
        "ports": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "name": names,
                    "port": port_numbers,
                    "protocol": protocols,
                    "appProtocol": names,
                },
            ),
            max_size=3,
        ),
    },
)
addresses = st.lists(
    st.fixed_dictionaries(
        {"ip": v4 | v6}, optional={"hostname": names, "nodeName": names, "targetRef": target}
    ),
    max_size=2,
)
endpoints = st.fixed_dictionaries(
    {"metadata": metadata},
    optional={
        "subsets": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "addresses": addresses,
                    "notReadyAddresses": addresses,
                    "ports": st.lists(
                        st.fixed_dictionaries(
                            {"port": port_numbers},
                            optional={"name": names, "protocol": protocols, "appProtocol": names},
                        ),
                        max_size=2,
                    ),
                },
            ),
            max_size=2,
        )
    },
)
services = st.fixed_dictionaries(
    {
        "metadata": metadata,
        "spec": st.fixed_dictionaries(
            {
                "ports": st.lists(
                    st.fixed_dictionaries(
                        {"port": port_numbers},
                        optional={
                            "name": names,
                            "protocol": protocols,
                            "targetPort": st.sampled_from([0, 80, "http", "8080"]),
                            "nodePort": st.sampled_from([0, 30080, 1]),
                            "appProtocol": names,
                        },
                    ),
                    max_size=2,
                )
            },
            optional={
                "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
                "selector": st.dictionaries(names, names, max_size=2),
                "clusterIP": st.sampled_from(["", "None", "10.96.0.9"]),
                "externalName": st.sampled_from(["", "a.b"]),
                "externalIPs": st.lists(v4 | v6, max_size=2),
                "ipFamilyPolicy": st.sampled_from(
                    ["SingleStack", "PreferDualStack", "RequireDualStack"]
                ),
                "ipFamilies": st.lists(st.sampled_from(["IPv4", "IPv6"]), max_size=2),
                "sessionAffinity": st.sampled_from(["None", "ClientIP"]),
                "trafficDistribution": st.sampled_from(["PreferClose", "PreferSameNode"]),
                "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
                "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
                "publishNotReadyAddresses": st.booleans(),
                "loadBalancerSourceRanges": st.lists(
                    st.sampled_from(["10.0.0.0/8", "::/0"]), max_size=1
                ),
            },
        ),
    }
)


def survives(api: Any, resource: Resource, document: Any) -> None:
    try:
        made = json.loads(api.create(resource, copy.deepcopy(document)).body)
    except StatusError as error:
        if error.code in (400, 422):
            return
        raise
    assert api.get(resource, "x") == made
    spoken: list[Resource] = [resource]
    if resource is EndpointSlices:
        spoken.append(EndpointSlicesV1beta1)
    for each in spoken:
        read = api.get(each, "x")
        forms = {
            "JSON": json.loads(json.dumps(read)),
            "YAML": decode_yaml(yaml.safe_dump(read).encode()).document,
            "protobuf": protobuf.decode(protobuf.encode(read)),
        }
        for name, form in forms.items():
            written = api.update(each, "x", form)
            assert written.revision == 0, (
                f"{each.version} read as {name} and written back is a change"
            )
            assert json.loads(written.body) == read
    assert api.get(resource, "x") == made
    api.registry.check()


@effort(60)
@given(slices)
def test_endpoint_slices(make_api: Any, document: Any) -> None:
    survives(make_api(), EndpointSlices, document)


@effort(60)
@given(endpoints)
def test_endpoints(make_api: Any, document: Any) -> None:
    survives(make_api(), EndpointsObjects, document)


@effort(60)
@given(services)
def test_services(make_api: Any, document: Any) -> None:
    survives(make_api(), Services, document)
