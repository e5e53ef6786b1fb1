"""Any history: only StatusErrors, versions that grow, no-ops that write nothing, lists that equal a
model, and Services that hold exactly what they show.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    ConfigMaps,
    EndpointSlices,
    Leases,
    Namespaces,
    Pods,
    ReplicaSets,
    Resource,
    Services,
)

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["1", "2"])
POLICIES = st.sampled_from(["SingleStack", "PreferDualStack", "RequireDualStack"])
# Two addresses and two ports, so that Services fight for them.
ADDRESSES = st.sampled_from(["10.96.0.5", "10.96.0.6", "fd00:10:96::5", "None", "10.200.0.1"])
NODE_PORTS = st.sampled_from([0, 30001, 30002, 80])
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "labels": st.dictionaries(st.sampled_from(["x", "y"]), VALUES, max_size=2),
        "annotations": st.dictionaries(st.sampled_from(["x", "y"]), VALUES, max_size=1),
        "finalizers": st.lists(st.sampled_from(["x.io/f", "orphan"]), unique=True, max_size=2),
    },
)


def ports(draw: Any) -> list[Any]:
    count = draw(st.integers(1, 2))
    return [
        {"name": f"p{index}", "port": 80 + index, "nodePort": draw(NODE_PORTS)}
        for index in range(count)
    ]


@st.composite
def service_specs(draw: Any) -> Any:
    kind = draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]))
    spec: dict[str, Any] = {
        "type": kind,
        "ports": ports(draw),
        "selector": {"a": "b"} if draw(st.booleans()) else {},
    }
    if kind in ("ClusterIP", "ExternalName"):
        for port in spec["ports"]:
            del port["nodePort"]
    if kind == "ExternalName":
        spec["externalName"] = "a.b"
    if draw(st.booleans()):
        spec["clusterIP"] = draw(ADDRESSES)
    if draw(st.booleans()):
        spec["ipFamilyPolicy"] = draw(POLICIES)
    if kind == "LoadBalancer" and draw(st.booleans()):
        spec["externalTrafficPolicy"] = "Local"
    return {"spec": spec}


POD = {"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
CONTENT: dict[str, st.SearchStrategy[Any]] = {
    ConfigMaps.key: st.fixed_dictionaries({"data": st.dictionaries(NAMES, VALUES, max_size=2)}),
    EndpointSlices.key: st.fixed_dictionaries(
        {
            "addressType": st.sampled_from(["IPv4", "IPv4", "IPv6"]),
            "endpoints": st.lists(
                st.sampled_from(
                    [
                        {"addresses": ["10.0.0.1"]},
                        {"addresses": ["10.0.0.2"]},
                        {"addresses": ["::1"]},
                    ]
                ),
                max_size=2,
            ),
        }
    ),
    Leases.key: st.fixed_dictionaries(
        {"spec": st.fixed_dictionaries({"leaseTransitions": st.integers(-1, 2)})}
    ),
    Pods.key: st.just(POD),
    ReplicaSets.key: st.fixed_dictionaries(
        {
            "spec": st.fixed_dictionaries(
                {
                    "replicas": st.integers(-1, 2),
                    "selector": st.just({"matchLabels": {"a": "b"}}),
                    "template": st.just(TEMPLATE),
                }
            )
        }
    ),
    Services.key: service_specs(),
}
KINDS: list[Resource] = [ConfigMaps, EndpointSlices, Leases, Pods, ReplicaSets, Services]


@st.composite
def steps(draw: Any) -> Any:
    verb = draw(
        st.sampled_from(
            ["create", "create", "update", "update", "patch", "delete", "again", "commit", "abort"]
        )
    )
    resource = draw(st.sampled_from([*KINDS, Services, Services]))
    document = {**draw(CONTENT[resource.key]), "metadata": {**draw(METADATA), "name": draw(NAMES)}}
    policy = draw(st.sampled_from([None, None, "Foreground", "Orphan", "Background"]))
    return verb, resource, document, policy, draw(st.booleans())


def apply_step(api: Any, step: Any) -> Any:
    verb, resource, document, policy, dry = step
    name = document["metadata"]["name"]
    if verb == "create":
        return api.create(resource, document, dry_run=dry)
    if verb == "update":
        return api.update(resource, name, document, dry_run=dry)
    if verb == "patch":
        return api.patch(resource, name, document, "strategic" if dry else "merge")
    return api.delete(resource, name, propagation=policy, dry_run=dry)


def newest(api: Any) -> dict[tuple[str, str], Any]:
    return {
        (resource.key, record.key.name): json.loads(record.body)
        for resource in KINDS
        for record in api.store.iter_latest(resource.storage_key, "default")
    }


@effort(120)
@given(history=st.lists(steps(), max_size=25))
def test_any_history(make_api: Any, history: Any) -> None:
    api = make_api(
        service_cidrs=("10.96.0.0/28", "fd00:10:96::/124"),
        node_port_first=30000,
        node_port_last=30003,
    )
    api.commits = False
    durable = newest(api)
    for step in history:
        verb, resource, document = step[0], step[1], step[2]
        before, staged = newest(api), api.store.staged_revision
        try:
            if verb == "commit":
                api.commit()
                durable = newest(api)
            elif verb == "abort":
                api.store.abort_staged()
                api.registry.on_aborted()
                assert newest(api) == durable
            elif verb == "again":
                current = before.get((resource.key, document["metadata"]["name"]))
                if current is not None and "deletionTimestamp" not in current["metadata"]:
                    outcome = api.update(
                        resource, document["metadata"]["name"], copy.deepcopy(current)
                    )
                    assert json.loads(outcome.body) == current, (
                        "what was read can be written back as it is"
                    )
                    assert newest(api) == before
            else:
                outcome = apply_step(api, step)
                if outcome.revision <= staged:
                    assert newest(api) == before, "nothing was written"
                else:
                    assert outcome.revision == api.store.staged_revision
        except StatusError as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            assert refused.code < 500 or "range is full" in refused.message, refused
            assert newest(api) == before, "an error leaves no trace"
        for key, current in newest(api).items():
            if current != before.get(key):
                version = int(current["metadata"]["resourceVersion"])
                assert verb == "abort" or version > staged, "versions grow"
        api.registry.check()
    api.commit()
    api.store.check()
    model = newest(api)
    for resource in KINDS:
        listed = {
            (resource.key, record.key.name): json.loads(record.body)
            for record in api.list(resource).records
        }
        assert listed == {key: value for key, value in model.items() if key[0] == resource.key}


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 70000)
    | st.sampled_from(["", "a", "None", "10.0.0.1", "1%", "TCP"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "a", "spec"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, member in items:
        found += [(*prefix, step), *paths(member, (*prefix, step))]
    return found


@st.composite
def spoiled(draw: Any) -> Any:
    """An object with junk somewhere, perhaps under a name that the kind knows."""
    resource = draw(st.sampled_from([*KINDS, Namespaces]))
    content = (
        draw(CONTENT[resource.key])
        if resource.key in CONTENT
        else {"spec": {"finalizers": ["kubernetes"]}}
    )
    document = copy.deepcopy({**content, "metadata": {**draw(METADATA), "name": "a"}})
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(paths(document)))
        parent: Any = document
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = draw(JUNK)
        if not paths(document):
            break
    extra = draw(
        st.sampled_from(
            ["ownerReferences", "managedFields", "creationTimestamp", "generation", "", ""]
        )
    )
    if extra and isinstance(document.get("metadata"), dict):
        document["metadata"][extra] = draw(JUNK)
    return resource, document


@effort(300)
@given(first=spoiled(), second=spoiled())
def test_junk_is_refused_or_stored_but_never_crashes(
    make_api: Any, first: Any, second: Any
) -> None:
    api = make_api()
    for resource, document in (first, second):
        for verb in ("create", "update", "patch", "status"):
            try:
                if verb == "create":
                    api.create(resource, document)
                elif verb == "update":
                    api.update(resource, "a", document)
                elif verb == "patch":
                    api.patch(resource, "a", document, "merge")
                elif resource.has_status:
                    api.update(
                        resource,
                        "a",
                        {**document, "status": document.get("spec")},
                        subresource="status",
                    )
            except StatusError:
                continue
    api.registry.check()
    api.store.check()
