"""What every Pod gets at its creation: account, priority, tolerations (upstream's always-on
admission).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import IngressClasses, Ingresses, Pods, PriorityClasses, RuntimeClasses

TABLES = tables(__file__)

NOT_READY, UNREACHABLE = (
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for key in ("not-ready", "unreachable")
)


def pod(**spec: Any) -> Any:
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def spec_of(outcome: Any) -> Any:
    return json.loads(outcome.body)["spec"]


def test_what_is_filled_in(api: Any) -> None:
    spec = spec_of(api.create(Pods, pod()))
    assert spec["tolerations"] == [NOT_READY, UNREACHABLE]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            [UNREACHABLE],
        ),
        ({"key": "node.kubernetes.io/unreachable", "operator": "Exists"}, [NOT_READY]),
        ({"operator": "Exists"}, []),
        ({"key": "mine", "operator": "Exists"}, [NOT_READY, UNREACHABLE]),
        (
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"},
            [NOT_READY, UNREACHABLE],
        ),
    ],
)
def test_what_is_tolerated_already_stays(api: Any, given: Any, added: list[Any]) -> None:
    assert spec_of(api.create(Pods, pod(tolerations=[given])))["tolerations"] == [given, *added]


@pytest.mark.parametrize(("given", "why"), TABLES["priorities_are_not_for_the_asking"])
def test_priorities_are_not_for_the_asking(api: Any, given: Any, why: str) -> None:
    error = api.fails("create", Pods, pod(**given))
    assert (error.code, error.message) == (403, f'pods "p" is forbidden: {why}')


def test_the_system_classes(api: Any) -> None:
    assert (
        spec_of(api.create(Pods, pod(priorityClassName="system-node-critical")))["priority"]
        == 2000001000
    )


def test_a_pod_that_names_no_class_has_the_default_one_and_there_is_one_at_most(api: Any) -> None:
    api.create(PriorityClasses, {"metadata": {"name": "plain"}, "value": 3})
    usual = {
        "metadata": {"name": "usual"},
        "value": 7,
        "globalDefault": True,
        "preemptionPolicy": "Never",
    }
    api.create(PriorityClasses, usual)
    spec = spec_of(api.create(Pods, pod()))
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "usual",
        7,
        "Never",
    )
    named = spec_of(
        api.create(Pods, {**pod(priorityClassName="plain"), "metadata": {"name": "named"}})
    )
    assert (named["priority"], named["preemptionPolicy"]) == (3, "PreemptLowerPriority")
    why = (
        'priorityclasses.scheduling.k8s.io "{}" is forbidden: PriorityClass usual is already '
        "marked as default. "
    )
    for verb, arguments, name in (
        ("create", (PriorityClasses, {**usual, "metadata": {"name": "second"}}), "second"),
        ("patch", (PriorityClasses, "plain", {"globalDefault": True}), "plain"),
    ):
        error = api.fails(verb, *arguments)
        assert (error.code, error.message) == (403, f"{why.format(name)}Only one default can exist")
    assert api.patch(PriorityClasses, "usual", {"description": "of most"}).code == 200


def test_an_ingress_that_names_no_class_has_the_newest_default(api: Any) -> None:
    backend = {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}
    default = {"ingressclass.kubernetes.io/is-default-class": "true"}

    def ingress(name: str, annotations: Any = None, **spec: Any) -> Any:
        return {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {**backend, **spec},
        }

    assert "ingressClassName" not in spec_of(api.create(Ingresses, ingress("before")))
    for name, told in (("b", default), ("a", default), ("c", {})):
        document = {
            "metadata": {"name": name, "annotations": told},
            "spec": {"controller": "x.io/c"},
        }
        api.create(IngressClasses, document)
    assert spec_of(api.create(Ingresses, ingress("one")))["ingressClassName"] == "a"
    assert (
        spec_of(api.create(Ingresses, ingress("named", ingressClassName="c")))["ingressClassName"]
        == "c"
    )
    older = ingress("older", {"kubernetes.io/ingress.class": "c"})
    assert "ingressClassName" not in spec_of(api.create(Ingresses, older))
    api.now += 60
    document = {
        "metadata": {"name": "new", "annotations": default},
        "spec": {"controller": "x.io/c"},
    }
    api.create(IngressClasses, document)
    assert spec_of(api.create(Ingresses, ingress("two")))["ingressClassName"] == "new"


def test_an_update_may_leave_out_what_was_given(api: Any) -> None:
    created = api.create(
        Pods, pod(serviceAccountName="default", automountServiceAccountToken=False)
    )
    outcome = api.update(
        Pods, "p", pod(serviceAccountName="default", automountServiceAccountToken=False)
    )
    assert (outcome.revision, spec_of(outcome)) == (0, spec_of(created)), (
        "nothing changed, nothing written"
    )


def runtime_class(api: Any) -> None:
    scheduling = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "slow", "operator": "Exists"}],
    }
    overhead = {"podFixed": {"cpu": "10m", "memory": "1Mi"}}
    document = {
        "metadata": {"name": "sandboxed"},
        "handler": "h",
        "overhead": overhead,
        "scheduling": scheduling,
    }
    api.create(RuntimeClasses, document)


def test_a_runtime_class_must_exist_and_gives_what_it_asks_for(api: Any) -> None:
    sandboxed = pod(runtimeClassName="sandboxed", nodeSelector={"zone": "a"})
    error = api.fails("create", Pods, sandboxed)
    assert (error.code, error.message) == (
        403,
        'pods "p" is forbidden: pod rejected: RuntimeClass "sandboxed" not found',
    )
    runtime_class(api)
    spec = spec_of(api.create(Pods, sandboxed))
    assert spec["overhead"] == {"cpu": "10m", "memory": "1Mi"}
    assert spec["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    assert spec["tolerations"] == [NOT_READY, UNREACHABLE, {"key": "slow", "operator": "Exists"}]
    assert api.create(Pods, {**pod(**spec), "metadata": {"name": "again"}}), (
        "what it gives may be said"
    )


def test_a_runtime_class_without_overhead_adds_none(api: Any) -> None:
    api.create(RuntimeClasses, {"metadata": {"name": "plain"}, "handler": "h"})
    spec = spec_of(api.create(Pods, pod(runtimeClassName="plain")))
    assert not {"overhead", "nodeSelector"} & spec.keys()


@pytest.mark.parametrize(
    ("spec", "why"), TABLES["what_a_runtime_class_says_is_not_for_pods_to_change"]
)
def test_what_a_runtime_class_says_is_not_for_pods_to_change(api: Any, spec: Any, why: str) -> None:
    runtime_class(api)
    assert api.fails("create", Pods, pod(**spec)).message == f'pods "p" is forbidden: {why}'
