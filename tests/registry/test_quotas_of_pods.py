"""What Pods cost under a ResourceQuota, which of them a scope holds, and what a quota makes them
say.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.core import Pod, PodSpec
from sliceplane.api.scheme import Pods, PriorityClasses, ResourceQuotas
from sliceplane.server.registry.kinds import quota_text, usage
from sliceplane.server.registry.kinds.pods.pod_quota import qos_class

TABLES = tables(__file__)


def container(name: str = "c", **resources: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": resources}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [container()], **spec}}


def asking(name: str = "p", cpu: str = "1", memory: str = "64Mi", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    return pod(name, containers=[container(requests=amounts, limits=amounts)], **spec)


def limit(api: Api, name: str = "q", *, spec: dict[str, Any] | None = None, **hard: str) -> None:
    """A quota that the controller has counted once: nothing is used."""
    limits = {name.replace("__", "."): quantity for name, quantity in hard.items()}
    api.create(
        ResourceQuotas, {"metadata": {"name": name}, "spec": {"hard": limits, **(spec or {})}}
    )
    api.patch(
        ResourceQuotas,
        name,
        {"status": {"hard": limits, "used": dict.fromkeys(limits, "0")}},
        subresource="status",
    )


def used(api: Api, name: str = "q") -> Any:
    return api.get(ResourceQuotas, name)["status"]["used"]


def cost(spec: dict[str, Any], **status: str) -> dict[str, str]:
    document = {"metadata": {"name": "p"}, "spec": spec, "status": status}
    costs = usage(Pods, msgspec.convert(document, Pod))
    return {name: quota_text(name, number) for name, number in costs.items()}


def test_amounts_are_charged_and_refused(api: Api) -> None:
    limit(api, requests__cpu="2", limits__memory="256Mi", pods="9")
    api.create(Pods, asking("a", cpu="1500m", memory="128Mi"))
    assert used(api) == {"pods": "1", "requests.cpu": "1500m", "limits.memory": "128Mi"}
    error = api.fails("create", Pods, asking("b", cpu="600m", memory="129Mi"))
    assert error.message == (
        'pods "b" is forbidden: exceeded quota: q, requested: '
        "limits.memory=129Mi,requests.cpu=600m, "
        "used: limits.memory=128Mi,requests.cpu=1500m, limited: limits.memory=256Mi,requests.cpu=2"
    )
    api.create(Pods, asking("b", cpu="500m", memory="128Mi"))
    assert used(api) == {"pods": "2", "requests.cpu": "2", "limits.memory": "256Mi"}


def test_a_quota_of_cpu_or_memory_must_be_spoken_of(api: Api) -> None:
    limit(api, cpu="2", limits__memory="1Gi")
    silent = pod(
        initContainers=[container("first", limits={"memory": "1Mi"})],
        containers=[container("b"), container("a", requests={"cpu": "1", "memory": "1Mi"})],
    )
    assert api.fails("create", Pods, silent).message == (
        'pods "p" is forbidden: failed quota: q: must specify cpu for: b,first; limits.memory '
        "for: a,b"
    )
    whole = pod(resources={"requests": {"cpu": "1"}, "limits": {"memory": "2Mi"}})
    api.create(Pods, whole)
    assert used(api)["cpu"] == "1"
    assert used(api)["limits.memory"] == "2Mi"


def test_a_status_that_lacks_what_is_limited(api: Api) -> None:
    limit(api, cpu="2", pods="1")
    api.patch(ResourceQuotas, "q", {"status": {"used": {"cpu": None}}}, subresource="status")
    assert api.fails("create", Pods, asking()).message.endswith(
        "status unknown for quota: q, resources: cpu"
    )


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        ("Terminating", {"activeDeadlineSeconds": 5}, {}),
        ("NotTerminating", {}, {"activeDeadlineSeconds": 5}),
        ("PriorityClass", {"priorityClassName": "system-node-critical"}, {}),
        (
            "CrossNamespacePodAffinity",
            {
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "zone", "namespaceSelector": {}}
                        ]
                    }
                }
            },
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]
                    }
                }
            },
        ),
    ],
)
def test_a_scope_holds_some_pods(api: Api, scope: str, inside: Any, outside: Any) -> None:
    limit(api, pods="1", spec={"scopes": [scope]})
    for name in "ab":
        api.create(Pods, pod(name, **outside))
    assert used(api) == {"pods": "0"}
    api.create(Pods, pod("c", **inside))
    assert (
        "exceeded quota: q, requested: pods=1"
        in api.fails("create", Pods, pod("d", **inside)).message
    )


def test_best_effort_and_the_rest(api: Api) -> None:
    limit(api, "best", pods="5", spec={"scopes": ["BestEffort"]})
    limit(
        api,
        "rest",
        pods="5",
        requests__cpu="5",
        spec={"scopes": ["NotBestEffort", "NotTerminating"]},
    )
    api.create(Pods, pod("a"))
    assert (used(api, "best"), used(api, "rest")) == (
        {"pods": "1"},
        {"pods": "0", "requests.cpu": "0"},
    )
    api.create(Pods, asking("b"))
    api.create(Pods, asking("c", activeDeadlineSeconds=1))
    assert (used(api, "best"), used(api, "rest")) == (
        {"pods": "1"},
        {"pods": "1", "requests.cpu": "1"},
    )


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ["high", "low"], {"high"}),
        ("NotIn", ["high"], {"", "middle"}),
        ("Exists", [], {"high", "middle"}),
        ("DoesNotExist", [], {""}),
    ],
)
def test_a_selector_of_priority_classes(
    api: Api, operator: str, values: list[str], holds: set[str]
) -> None:
    selector = {"scopeName": "PriorityClass", "operator": operator, "values": values}
    limit(api, pods="9", spec={"scopeSelector": {"matchExpressions": [selector]}})
    for name in ("high", "middle"):
        api.create(PriorityClasses, {"metadata": {"name": name}, "value": 1})
    held = set()
    for name in ("high", "middle", ""):
        before = used(api)
        api.create(
            Pods, pod(f"p-{name or 'none'}", **({"priorityClassName": name} if name else {}))
        )
        if used(api) != before:
            held.add(name)
    assert held == holds


def test_what_runs_side_by_side_is_added_up() -> None:
    spec = {
        "containers": [
            container("a", requests={"cpu": "1"}),
            container("b", requests={"cpu": "250m"}),
        ],
        "initContainers": [
            container("big", requests={"cpu": "2", "example.com/gpu": "1"}),
            {**container("stays", requests={"cpu": "1"}), "restartPolicy": "Always"},
            container("late", requests={"cpu": "1500m"}),
        ],
        "overhead": {"cpu": "100m"},
    }
    assert cost(spec) == {
        "count/pods": "1",
        "pods": "1",
        "cpu": "2600m",
        "requests.cpu": "2600m",
        "requests.example.com/gpu": "1",
    }


def test_every_name_that_pods_are_counted_under() -> None:
    amounts = {
        "cpu": "1",
        "memory": "1Ki",
        "ephemeral-storage": "1Gi",
        "hugepages-2Mi": "4Mi",
        "example.com/x": "3",
    }
    assert cost({"containers": [container(requests=amounts, limits=amounts)]}) == {
        "count/pods": "1",
        "pods": "1",
        **dict.fromkeys(("cpu", "requests.cpu", "limits.cpu"), "1"),
        **dict.fromkeys(("memory", "requests.memory", "limits.memory"), "1Ki"),
        **dict.fromkeys(
            ("ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage"), "1Gi"
        ),
        **dict.fromkeys(("hugepages-2Mi", "requests.hugepages-2Mi"), "4Mi"),
        "requests.example.com/x": "3",
    }
    assert cost({"containers": [container(requests=amounts)]}, phase="Failed") == {
        "count/pods": "1"
    }


@pytest.mark.parametrize(("spec", "expected"), TABLES["the_class_of_a_pod"])
def test_the_class_of_a_pod(spec: Any, expected: str) -> None:
    assert qos_class(msgspec.convert(spec, PodSpec)) == expected
