"""Strategic merge patch: every directive, what kubectl apply sends, and that applying twice is
applying once.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.server.documents.patch import apply_strategic, decode_strategic_patch, go_text

TABLES = tables(__file__)

DEPLOYMENTS = "deployments.apps"
SLICES = "endpointslices.discovery.k8s.io"


def apply(key: str, document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Applies, and holds what is true of every patch."""
    kept = copy.deepcopy((document, patch))
    result = apply_strategic(document, patch, key)
    assert (document, patch) == kept
    assert "$" not in repr(result)
    return result


def pod_spec(*containers: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **others}}


def names(listed: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in listed]


def test_objects_merge_and_null_deletes() -> None:
    document = {"metadata": {"name": "a", "labels": {"x": "1", "y": "2"}}, "data": {"k": "v"}}
    patch = {"metadata": {"labels": {"x": None, "z": "3"}}, "data": None, "immutable": True}
    assert apply("configmaps", document, patch) == {
        "metadata": {"name": "a", "labels": {"y": "2", "z": "3"}},
        "immutable": True,
    }


def test_nulls_and_directives_never_arrive() -> None:
    patch = {"data": {"a": "1", "b": None, "$retainKeys": ["a"]}}
    assert apply("configmaps", {}, patch) == {"data": {"a": "1"}}
    assert apply("configmaps", {"data": "of another type"}, patch) == {"data": {"a": "1"}}


def test_the_patch_directive_of_objects() -> None:
    document = {"data": {"a": "1", "b": "2"}}
    assert apply("configmaps", document, {"data": {"$patch": "replace", "c": "3"}}) == {
        "data": {"c": "3"}
    }
    assert apply("configmaps", document, {"data": {"$patch": "delete"}}) == {"data": {}}
    assert apply("configmaps", document, {"data": {"$patch": "merge", "a": "9"}}) == {
        "data": {"a": "9", "b": "2"}
    }
    assert apply("configmaps", {}, {"data": {"$patch": "delete"}}) == {"data": {}}


@pytest.mark.parametrize("document", [{"data": {"a": "1"}}, {}])
def test_an_unknown_patch_directive(document: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as caught:
        apply("configmaps", document, {"data": {"$patch": "bad", "b": 1}})
    assert (caught.value.code, caught.value.reason) == (500, "")
    assert caught.value.message == "unknown patch type: bad in map: map[$patch:bad b:1]"


def test_containers_merge_by_name_and_new_ones_come_first() -> None:
    document = pod_spec({"name": "a", "image": "1"}, {"name": "b", "image": "1"})
    patch = pod_spec({"name": "b", "image": "2"}, {"name": "c", "image": "1"})
    assert apply("pods", document, patch)["spec"]["containers"] == [
        {"name": "a", "image": "1"},
        {"name": "b", "image": "2"},
        {"name": "c", "image": "1"},
    ]
    assert names(apply("pods", document, pod_spec({"name": "c"}))["spec"]["containers"]) == [
        "c",
        "a",
        "b",
    ]


def test_elements_are_deleted_by_key() -> None:
    document = pod_spec({"name": "a"}, {"name": "b"})
    patch = pod_spec({"$patch": "delete", "name": "a"}, {"$patch": "delete", "name": "missing"})
    assert names(apply("pods", document, patch)["spec"]["containers"]) == ["b"]
    assert apply("pods", {}, patch) == {"spec": {"containers": []}}


def test_a_list_is_replaced_whole() -> None:
    document = pod_spec({"name": "a", "image": "1"}, {"name": "b"})
    patch = pod_spec({"$patch": "replace"}, {"name": "a"})
    assert apply("pods", document, patch) == pod_spec({"name": "a"})


def test_lists_without_a_strategy_are_replaced() -> None:
    document = pod_spec({"name": "a", "args": ["1", "2"]}, tolerations=[{"key": "x"}])
    patch = pod_spec({"name": "a", "args": ["3"]}, tolerations=[{"key": "y"}])
    result = apply("pods", document, patch)
    assert result["spec"]["containers"][0]["args"] == ["3"]
    assert result["spec"]["tolerations"] == [{"key": "y"}]


def test_endpoints_and_ports_of_a_slice_are_replaced() -> None:
    document = {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    }
    patch = {"endpoints": [{"addresses": ["10.0.0.3"]}], "ports": [{"name": "http", "port": 8080}]}
    assert apply(SLICES, document, patch) == {"addressType": "IPv4", **patch}
    assert apply(SLICES, document, {"endpoints": []})["endpoints"] == []


def test_finalizers_are_a_set_and_new_ones_come_first() -> None:
    document = {"metadata": {"finalizers": ["a/x", "b/y"]}}
    patch: dict[str, Any] = {"metadata": {"finalizers": ["c/z", "a/x"]}}
    assert apply("pods", document, patch)["metadata"]["finalizers"] == ["c/z", "a/x", "b/y"]
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x", "no"], "finalizers": ["c/z"]}
    }
    assert apply("pods", document, patch)["metadata"]["finalizers"] == ["c/z", "b/y"]
    patch = {"metadata": {"$setElementOrder/finalizers": ["b/y", "a/x"]}}
    assert apply("pods", document, patch)["metadata"]["finalizers"] == ["b/y", "a/x"]
    assert apply("pods", {}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}}) == {
        "metadata": {}
    }


def test_owners_merge_by_uid() -> None:
    document = {
        "metadata": {"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]}
    }
    patch = {
        "metadata": {
            "ownerReferences": [{"$patch": "delete", "uid": "1"}, {"uid": "2", "controller": True}]
        }
    }
    owners = apply("pods", document, patch)["metadata"]["ownerReferences"]
    assert owners == [{"uid": "2", "name": "b", "controller": True}]


def test_the_order_that_is_wanted() -> None:
    document = pod_spec({"name": "a"}, {"name": "sidecar"}, {"name": "b"})
    patch: dict[str, Any] = pod_spec({"name": "c"})
    patch["spec"]["$setElementOrder/containers"] = [{"name": "b"}, {"name": "c"}, {"name": "a"}]
    # The element that the sender does not know of stands before b, as it did.
    assert names(apply("pods", document, patch)["spec"]["containers"]) == ["sidecar", "b", "c", "a"]
    order_only = {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}
    assert names(apply("pods", document, order_only)["spec"]["containers"]) == ["sidecar", "b", "a"]
    assert apply("pods", {"spec": {}}, order_only) == {"spec": {}}


def test_a_patch_that_is_not_in_its_own_order() -> None:
    patch: dict[str, Any] = pod_spec({"name": "a"}, {"name": "b"})
    patch["spec"]["$setElementOrder/containers"] = [{"name": "b"}, {"name": "a"}]
    with pytest.raises(StatusError) as caught:
        apply("pods", {"spec": {}}, patch)
    assert (caught.value.code, caught.value.reason) == (500, "")
    assert caught.value.message == (
        "The order in patch list:\n[map[name:a] map[name:b]]\n doesn't match $setElementOrder "
        "list:\n"
        "[map[name:b] map[name:a]]\n"
    )


def test_an_element_without_its_key() -> None:
    with pytest.raises(StatusError) as caught:
        apply("pods", pod_spec({"name": "a"}), pod_spec({"image": "x"}))
    assert (caught.value.code, caught.value.message) == (
        500,
        "map: map[image:x] does not contain declared merge key: name",
    )


@pytest.mark.parametrize(("patch", "message"), TABLES["directives_of_a_wrong_form"])
def test_directives_of_a_wrong_form(patch: dict[str, Any], message: str) -> None:
    document = {"metadata": {"finalizers": ["a/b"]}, "spec": {"strategy": {"type": "Recreate"}}}
    with pytest.raises(StatusError) as caught:
        apply(DEPLOYMENTS, document, patch)
    assert (caught.value.code, caught.value.message) == (400, message)


def test_retain_keys_when_a_union_changes_its_member() -> None:
    """kubectl apply of a Deployment that goes from RollingUpdate to Recreate, while a volume
    changes its source.
    """
    document = {
        "spec": {
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            "template": {
                "spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}
            },
        }
    }
    volume = {"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "c"}}
    patch = {
        "spec": {
            "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
            "template": {
                "spec": {
                    "$setElementOrder/volumes": [{"name": "v"}, {"name": "w"}],
                    "volumes": [volume],
                },
            },
        }
    }
    assert apply(DEPLOYMENTS, document, patch) == {
        "spec": {
            "strategy": {"type": "Recreate"},
            "template": {
                "spec": {
                    "volumes": [
                        {"name": "v", "configMap": {"name": "c"}},
                        {"name": "w", "emptyDir": {}},
                    ]
                }
            },
        }
    }


def test_kubectl_apply_of_a_deployment() -> None:
    """The image and a variable change, one variable goes; a sidecar that somebody injected
    stays.
    """
    document = {
        "spec": {
            "replicas": 3,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "web",
                            "image": "web:1",
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                            "ports": [{"containerPort": 80, "protocol": "TCP"}],
                        },
                        {"name": "injected", "image": "proxy"},
                    ]
                }
            },
        }
    }
    container = {
        "$setElementOrder/env": [{"name": "A"}],
        "env": [{"name": "A", "value": "9"}, {"$patch": "delete", "name": "B"}],
        "image": "web:2",
        "name": "web",
    }
    pod = {"$setElementOrder/containers": [{"name": "web"}], "containers": [container]}
    result = apply(DEPLOYMENTS, document, {"spec": {"template": {"spec": pod}}})
    assert result["spec"]["replicas"] == 3
    assert result["spec"]["template"]["spec"]["containers"] == [
        {
            "name": "web",
            "image": "web:2",
            "env": [{"name": "A", "value": "9"}],
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
        },
        {"name": "injected", "image": "proxy"},
    ]


def test_kubectl_apply_of_a_service() -> None:
    """Ports by port; the node port that the server gave stays with its port."""
    document = {
        "spec": {
            "ports": [{"name": "http", "port": 80, "nodePort": 30001}, {"name": "old", "port": 81}]
        }
    }
    patch = {
        "spec": {
            "$setElementOrder/ports": [{"port": 443}, {"port": 80}],
            "ports": [
                {"name": "https", "port": 443},
                {"name": "web", "port": 80},
                {"$patch": "delete", "port": 81},
            ],
        }
    }
    assert apply("services", document, patch)["spec"]["ports"] == [
        {"name": "https", "port": 443},
        {"name": "web", "port": 80, "nodePort": 30001},
    ]


def test_one_port_number_for_two_protocols() -> None:
    tcp, udp = (
        {"name": p.lower(), "port": 53, "protocol": p, "nodePort": n}
        for p, n in (("TCP", 1), ("UDP", 2))
    )
    document = {"spec": {"ports": [tcp, udp]}}
    patch = {
        "spec": {
            "$setElementOrder/ports": [{"port": 53}, {"port": 53}],
            "ports": [{"port": 53, "protocol": "UDP", "targetPort": 5353}],
        }
    }
    assert apply("services", document, patch)["spec"]["ports"] == [tcp, {**udp, "targetPort": 5353}]


def test_series_of_an_event_as_the_recorder_patches_it() -> None:
    document = {"metadata": {"name": "e"}, "note": "x"}
    series = {"series": {"count": 2, "lastObservedTime": "2026-11-21T10:00:00.000000Z"}}
    assert apply("events", document, series) == {**document, **series}


def test_members_that_the_schema_does_not_know_merge_plainly() -> None:
    document = {"extra": {"a": {"b": 1}, "l": [{"name": "x"}]}}
    patch = {"extra": {"a": {"c": 2}, "l": [{"name": "y"}]}}
    assert apply("pods", document, patch) == {
        "extra": {"a": {"b": 1, "c": 2}, "l": [{"name": "y"}]}
    }


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"[]", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (b"{", "unexpected end of JSON input"),
    ],
)
def test_bodies_that_are_no_strategic_patch(raw: bytes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        decode_strategic_patch(raw)
    assert (caught.value.code, caught.value.message) == (400, message)


def test_go_text() -> None:
    assert (
        go_text({"b": [1, True, None], "a": {"x": "y z"}}) == "map[a:map[x:y z] b:[1 true <nil>]]"
    )


# For all

NAMES = st.sampled_from("abcdef")
ELEMENTS = st.lists(
    st.fixed_dictionaries({"name": NAMES}, optional={"image": NAMES}), unique_by=lambda e: e["name"]
)
FINALIZERS = st.lists(NAMES, unique=True)


@st.composite
def patches(draw: st.DrawFn) -> dict[str, Any]:
    elements = draw(ELEMENTS)
    deleted = draw(st.sets(NAMES)) - {element["name"] for element in elements}
    spec: dict[str, Any] = {
        "containers": [*elements, *({"$patch": "delete", "name": name} for name in sorted(deleted))]
    }
    metadata: dict[str, Any] = {"finalizers": draw(FINALIZERS)}
    if draw(st.booleans()):
        spec["$setElementOrder/containers"] = [{"name": element["name"]} for element in elements]
    if draw(st.booleans()):
        metadata["$deleteFromPrimitiveList/finalizers"] = sorted(
            draw(st.sets(NAMES)) - set(metadata["finalizers"])
        )
    return {"metadata": metadata, "spec": spec}


@given(ELEMENTS, FINALIZERS, patches())
def test_any_patch(old: list[dict[str, Any]], finalizers: list[str], patch: dict[str, Any]) -> None:
    document = {"metadata": {"finalizers": finalizers}, "spec": {"containers": old}}
    once = apply("pods", document, patch)
    assert apply("pods", once, patch) == once
    spoken_of = [e["name"] for e in patch["spec"]["containers"] if "$patch" not in e]
    deleted = {e["name"] for e in patch["spec"]["containers"] if "$patch" in e}
    result = names(once["spec"]["containers"])
    assert set(result) == (set(names(old)) | set(spoken_of)) - deleted
    assert len(result) == len(set(result))
    # The sender's elements are in the sender's order, the others in theirs.
    assert [name for name in result if name in spoken_of] == spoken_of
    others = [name for name in result if name not in spoken_of]
    assert others == [name for name in names(old) if name in others]
    for element in patch["spec"]["containers"]:
        if "$patch" not in element:
            [merged] = [e for e in once["spec"]["containers"] if e["name"] == element["name"]]
            assert element.items() <= merged.items()
