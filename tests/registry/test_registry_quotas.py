"""ResourceQuota: what may be limited, what a write costs, and which one is refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.quantity import AMOUNT_MAX, amount, exact, quantity_of
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Events, ResourceQuotas, Services

TABLES = tables(__file__)

SLICES = "count/endpointslices.discovery.k8s.io"


def quota(name: str = "q", hard: Any = None) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"hard": hard or {"count/configmaps": 2}}}


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def enforced(api: Api, name: str = "q", *, used: Any, **hard: Any) -> None:
    """A quota whose status the controller has written."""
    api.create(
        ResourceQuotas,
        quota(name, {each.replace("__", "/"): limit for each, limit in hard.items()}),
    )
    limits = api.get(ResourceQuotas, name)["spec"]["hard"]
    status = {"hard": limits, "used": used}
    api.patch(ResourceQuotas, name, {"status": status}, subresource="status")


def used(api: Api, name: str = "q") -> Any:
    return api.get(ResourceQuotas, name)["status"]["used"]


def test_nothing_is_enforced_before_the_status_is_there(api: Api) -> None:
    api.create(ResourceQuotas, quota(hard={"count/configmaps": 0}))
    found = api.get(ResourceQuotas, "q")
    assert (found["spec"]["hard"], found["status"]) == ({"count/configmaps": "0"}, {})
    api.create(ConfigMaps, config_map("a"))


def test_writes_are_charged_and_then_refused(api: Api) -> None:
    enforced(api, used={"count/configmaps": "0"}, count__configmaps=2)
    api.create(ConfigMaps, config_map("a"))
    api.create(ConfigMaps, config_map("b"), dry_run=True)
    assert used(api) == {"count/configmaps": "1"}
    api.create(ConfigMaps, config_map("b"))
    error = api.fails("create", ConfigMaps, config_map("c"))
    assert (error.code, error.reason) == (403, "Forbidden")
    assert error.message == (
        'configmaps "c" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: '
        "count/configmaps=2, "
        "limited: count/configmaps=2"
    )
    assert api.fails("create", ConfigMaps, config_map("c"), dry_run=True).message == error.message
    assert api.fails("create", ConfigMaps, config_map("b")).code == 409, (
        "a name that is taken is told first"
    )
    api.patch(ConfigMaps, "a", {"data": {"k": "v"}})
    api.create(ConfigMaps, config_map("c"), namespace="kube-system")


def test_the_charge_comes_before_the_object(api: Api) -> None:
    enforced(api, used={SLICES: "0"}, **{SLICES.replace("/", "__"): "5"})
    api.events.clear()
    api.create(EndpointSlices, {"metadata": {"name": "s"}, "addressType": "IPv4"})
    assert [event.record.key.resource for event in api.events] == [
        "resourcequotas",
        EndpointSlices.key,
    ]


def test_a_status_without_used(api: Api) -> None:
    api.create(ResourceQuotas, quota())
    api.patch(
        ResourceQuotas, "q", {"status": {"hard": {"count/configmaps": "1"}}}, subresource="status"
    )
    assert api.fails("create", ConfigMaps, config_map("a")).message == (
        'configmaps "a" is forbidden: status unknown for quota: q, resources: count/configmaps'
    )


def test_services_cost_ports_and_balancers(api: Api) -> None:
    enforced(
        api,
        used={"services": "0", "services.nodeports": "0", "services.loadbalancers": "0"},
        **{"services": 5, "services.nodeports": 2, "services.loadbalancers": 0},
    )
    ports = [{"name": name, "port": port} for name, port in (("a", 1), ("b", 2), ("c", 3))]
    api.create(Services, {"metadata": {"name": "s"}, "spec": {"ports": ports}})
    assert api.fails("patch", Services, "s", {"spec": {"type": "LoadBalancer"}}).message == (
        'services "s" is forbidden: exceeded quota: q, requested: '
        "services.loadbalancers=1,services.nodeports=3, "
        "used: services.loadbalancers=0,services.nodeports=0, limited: "
        "services.loadbalancers=0,services.nodeports=2"
    )
    api.patch(Services, "s", {"spec": {"type": "NodePort", "ports": ports[:2]}})
    assert used(api) == {"services": "1", "services.loadbalancers": "0", "services.nodeports": "2"}


def test_every_quota_must_allow_it_and_overuse_is_tolerated(api: Api) -> None:
    enforced(
        api,
        "a",
        used={"count/configmaps": "0", "configmaps": "7"},
        count__configmaps=5,
        configmaps=9,
    )
    enforced(api, "b", used={"configmaps": "3"}, configmaps=2)
    assert (
        "exceeded quota: b, requested: configmaps=1"
        in api.fails("create", ConfigMaps, config_map("x")).message
    )
    assert used(api, "a") == {"configmaps": "7", "count/configmaps": "0"}, (
        "nobody is charged for what was refused"
    )
    api.create(Events, {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}})
    api.delete(ResourceQuotas, "b")
    api.create(ConfigMaps, config_map("x"))
    assert used(api, "a") == {"configmaps": "8", "count/configmaps": "1"}


def test_what_was_forgotten_is_not_charged(api: Api) -> None:
    enforced(api, used={"count/configmaps": "0"}, count__configmaps=1)
    api.commits = False
    api.create(ConfigMaps, config_map("a"))
    api.store.abort_staged()
    api.registry.on_aborted()
    api.registry.check()
    api.commits = True
    api.create(ConfigMaps, config_map("b"))
    assert used(api) == {"count/configmaps": "1"}


@pytest.mark.parametrize(("spec", "message"), TABLES["rules"])
def test_rules(api: Api, spec: Any, message: str) -> None:
    error = api.fails("create", ResourceQuotas, {"metadata": {"name": "q"}, "spec": spec})
    assert error.message == f'ResourceQuota "q" is invalid: {message}'


def test_scopes_stay_and_a_status_is_looked_at(api: Api) -> None:
    api.create(
        ResourceQuotas,
        {"metadata": {"name": "q"}, "spec": {"hard": {"pods": 1}, "scopes": ["BestEffort"]}},
    )
    error = api.fails("patch", ResourceQuotas, "q", {"spec": {"scopes": ["NotBestEffort"]}})
    assert error.message.endswith(
        'spec.scopes: Invalid value: ["NotBestEffort"]: field is immutable'
    )
    error = api.fails(
        "patch", ResourceQuotas, "q", {"status": {"used": {"pods": "-1"}}}, subresource="status"
    )
    assert error.message.endswith(
        'status.used[pods]: Invalid value: "-1": must be greater than or equal to 0'
    )


def test_unknown_counts_and_amounts_of_compute_are_accepted(api: Api) -> None:
    hard = {"count/widgets.example.com": "1e3", "requests.cpu": "1500m", "memory": "1Gi"}
    made = quota(hard=hard)
    api.create(ResourceQuotas, made)
    assert api.get(ResourceQuotas, made["metadata"]["name"])["spec"]["hard"].keys() == hard.keys()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        (5, 5),
        ("1k", 1000),
        ("2Ki", 2048),
        ("1e3", 1000),
        ("1E", 10**18),
        ("1E2", 100),
        ("500m", Decimal("0.5")),
        ("-1.5", Decimal("-1.5")),
        ("0e99999999999", 0),
        ("1e99999999999", AMOUNT_MAX),
        ("-" + "9" * 400, -AMOUNT_MAX),
        ("1e-99999999999", Decimal("1e-9")),
    ],
)
def test_amounts(text: str | int, number: Any) -> None:
    assert amount(text) == number


@pytest.mark.parametrize(
    ("number", "text", "binary_text"),
    [
        (Fraction(0), "0", "0"),
        (Fraction(3, 2), "1500m", "1500m"),
        (Fraction(2000), "2k", "2k"),
        (Fraction(1536 * 2**20), "1610612736", "1536Mi"),
        (Fraction(2**60 * 3), "3458764513820540928", "3Ei"),
        (Fraction(1, 3), "333333334n", "333333334n"),
        (Fraction(-5, 1000), "-5m", "-5m"),
    ],
)
def test_texts_of_amounts(number: Fraction, text: str, binary_text: str) -> None:
    assert (quantity_of(number), quantity_of(number, binary=True)) == (text, binary_text)


@given(st.fractions(0, 2**70, max_denominator=10**9), st.booleans())
def test_a_text_says_the_amount_to_a_billionth(number: Fraction, binary: bool) -> None:
    said = exact(quantity_of(number, binary=binary))
    assert (
        0 <= said - min(number, exact(str(AMOUNT_MAX))) < Fraction(1, 10**9) or number > AMOUNT_MAX
    )


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "Ki", "m", "e3", "E-2", "Mi"]))
def test_amounts_are_ordered_as_numbers_are(number: int, suffix: str) -> None:
    assert amount(f"{number}{suffix}") < amount(f"{number + 1}{suffix}")
