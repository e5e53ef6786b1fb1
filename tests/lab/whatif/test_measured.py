"""``sliceplane what-if measured``: its figures against the production controllers, its demand, its
words.
"""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.whatif.asked import ask, cart, cart_snapshot, state_of, traffic

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease, LeaseSpec, Service
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Leases, Services
from sliceplane.cli.lab.what_if_measured import read_reports
from sliceplane.cli.main import main
from sliceplane.consume.demand import MEASURED
from sliceplane.kit.times import format_micro_time
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.lab.whatif import measured
from sliceplane.lab.whatif.measured import (
    CountedDemand,
    MeasuredPrediction,
    count_demand,
    predict_measured,
)
from sliceplane.lab.whatif.measured_text import as_text
from sliceplane.lab.whatif.state import WhatIfError

UID = "3f9a12c0"
MODE = "service.kubernetes.io/topology-mode"
SERVICE = Service(metadata=ObjectMeta(name="cart", namespace="default", uid=f"{UID}-0000"))
ZONES = {"node-a": "zone-a", "node-b": "zone-b"}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return cart(11, a=2, b=2, c=2)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("what-if") / "cart.snapshot"
    path.write_bytes(cart_snapshot())
    return path


def predict(cluster: Cluster, **weights: int) -> MeasuredPrediction:
    state = state_of(cluster)
    parts = {f"zone-{zone}": Fraction(weight) for zone, weight in weights.items()}
    return predict_measured(state, state.service("default", "cart"), parts)


def by_name(prediction: MeasuredPrediction) -> dict[str, tuple[float, float]]:
    return {
        value.name: (float(value.shares.greatest[0]), float(value.shares.leaving))
        for value in prediction.values
    }


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(0, 20)] * 3).filter(any))
def test_the_figures_are_those_of_controllers_that_ran(weights: tuple[int, ...]) -> None:
    cluster = ask_cluster()
    a, b, c = weights
    prediction = predict(cluster, a=a, b=b, c=c)
    annotations = {MODE: MEASURED, "sliceplane.dev/measured-shares": prediction.annotation}
    change = {"metadata": {"annotations": annotations}}
    cluster.patch(Services, "cart", change, namespace="default")
    cluster.converge(limit_s=600.0)
    ran = ask(cluster, clients=traffic(a=a, b=b, c=c)).before.shares
    assert ran.greatest[0] == prediction.after.greatest[0]
    assert ran.leaving == prediction.after.leaving
    gone = {"metadata": {"annotations": dict.fromkeys(annotations)}}
    cluster.patch(Services, "cart", gone, namespace="default")
    cluster.converge(limit_s=600.0)


_CLUSTERS: list[Cluster] = []


def ask_cluster() -> Cluster:
    """One cluster for all examples: each of them ends as it began."""
    if not _CLUSTERS:
        _CLUSTERS.append(cart(11, a=2, b=2, c=2))
    return _CLUSTERS[0]


def test_a_hot_zone(cluster: Cluster) -> None:
    prediction = predict(cluster, a=80, b=15, c=5)
    values = by_name(prediction)
    assert values["now (no value)"] == (1.0, pytest.approx(0.6409, abs=1e-4))
    assert values["PreferSameZone"] == (pytest.approx(0.8 * 11 / 4), 0.0)
    assert values["sliceplane.dev/Balanced"][0] == pytest.approx(1.3357, abs=1e-4)
    load, leaving = values[MEASURED]
    assert load <= 1.2 * (1 + 3 / 61)
    assert 0.3 < leaving < 0.5
    assert prediction.moved == 11, "none has hints now"
    assert not prediction.is_worse


def test_an_empty_service_and_others_without_an_answer(cluster: Cluster) -> None:
    with pytest.raises(WhatIfError, match="no ready endpoint"):
        predict(cart(0, a=1, b=1), a=1)
    with pytest.raises(WhatIfError, match=r"^1 zone has ready Nodes"):
        predict(cart(2, a=2), a=1)
    with pytest.raises(WhatIfError, match="stay on their node"):
        predict(cart(2, of={"internalTrafficPolicy": "Local"}, a=1, b=1), a=1)


def test_what_is_not_known_is_said(cluster: Cluster) -> None:
    state = state_of(cluster)
    service = state.service("default", "cart")
    typo = predict_measured(state, service, {"zone-x": Fraction(1), "zone-a": Fraction(1)})
    assert "Who connects from zone-x, where no ready Node is" in typo.unknown[0]
    nothing = predict_measured(state, service, {})
    assert "where Nodes have CPU" in nothing.demand.origin
    assert "Services that ask for sliceplane.dev/Measured alone" in nothing.unknown[0]
    few = CountedDemand({"zone-a": 1.0}, frozenset({"node-a-1", "node-b-1"}))
    counted = predict_measured(state, service, {}, few)
    assert counted.demand.origin == "Connections start as 2 reporters counted them, 1.0 a second"
    said = " ".join(counted.unknown)
    assert (
        "Connections from 4 of 6 ready Nodes without a report: node-a-2, node-b-2, node-c-1" in said
    )
    assert "decides from 200 connections in 87 s on, and these are 87." in said
    many = CountedDemand({"zone-a": 80.0, "zone-b": 20.0}, few.reporters)
    assert not any("decides" in line for line in predict_measured(state, service, {}, many).unknown)


def lease(name: str, at: float, text: str | None) -> Lease:
    annotations = None if text is None else {"sliceplane.dev/demand": text}
    return Lease(
        metadata=ObjectMeta(name=name, annotations=annotations),
        spec=LeaseSpec(renew_time=format_micro_time(1_790_000_000.0 + at)),
    )


def test_demand_is_counted_over_the_time_between_a_nodes_own_reports() -> None:
    first = [
        lease("sliceplane-proxy-node-a", 0, f"{UID}:1000,aaaaaaaa:5"),
        lease("sliceplane-proxy-node-b", 3, f"{UID}:50"),
    ]
    last = [
        lease("sliceplane-proxy-node-a", 20, f"{UID}:1400,zone-b/{UID}:9000,aaaaaaaa:900"),
        lease("sliceplane-proxy-node-b", 13, f"{UID}:30"),  # a new counter
        lease("sliceplane-proxy-node-c", 13, f"{UID}:9000"),  # came meanwhile
    ]
    counted = count_demand(first, last, SERVICE, ZONES)
    assert counted.rates == {"zone-a": 20.0, "zone-b": 3.0}
    assert counted.reporters == {"node-a", "node-b"}
    assert count_demand(first, first, SERVICE, ZONES) == CountedDemand({}, frozenset())


def test_requests_are_of_the_zone_in_the_report() -> None:
    first = [lease("sliceplane-xds-0", 0, f"zone-a/{UID}:10,zone-b/{UID}:10")]
    last = [lease("sliceplane-xds-0", 10, f"zone-a/{UID}:110,zone-b/{UID}:10,-/x:1")]
    assert count_demand(first, last, SERVICE, {}).rates == {"zone-a": 10.0, "zone-b": 0.0}


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_report_breaks_the_count(one: str, other: str) -> None:
    names = ("sliceplane-proxy-node-a", "x")
    first = [lease(name, 0, one) for name in names]
    last = [lease(name, 9, other) for name in names]
    assert all(rate >= 0 for rate in count_demand(first, last, SERVICE, ZONES).rates.values())


# The command


class Server:
    """Answers each list with the next of *answers*: Leases, or an error."""

    def __init__(self, *answers: list[Lease] | StatusError) -> None:
        self.answers = list(answers)

    async def list(self, selection: Selection, **_: Any) -> Any:
        assert (selection.resource, selection.namespace) == (Leases, "kube-node-lease")
        answer = self.answers.pop(0)
        if isinstance(answer, StatusError):
            raise answer
        return type("Page", (), {"items": list(map(encode, answer)), "continue_token": ""})()


def read(cluster: Cluster, *answers: list[Lease] | StatusError) -> CountedDemand:
    server = Server(*answers)
    reports = asyncio.run(read_reports(cast("Any", server), state_of(cluster), SERVICE))
    assert not server.answers, "each was asked for"
    return reports


def test_reports_are_read_twice_where_the_service_is_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "COUNTED_S", 1.0)
    name = "sliceplane-proxy-node-b-1"
    first, last = [lease(name, 0, f"{UID}:10")], [lease(name, 10, f"{UID}:60")]
    assert read(cluster, first, last) == CountedDemand({"zone-b": 5.0}, frozenset({"node-b-1"}))
    assert read(cluster, [lease(name, 0, "aaaaaaaa:10")]) == CountedDemand(), "once"


def test_without_the_right_to_read_reports_the_answer_says_so(cluster: Cluster) -> None:
    (unknown,) = read(cluster, StatusError(403, "Forbidden", "leases is forbidden")).unknown
    assert "--verb=list --resource=leases.coordination.k8s.io" in unknown
    with pytest.raises(StatusError):
        read(cluster, StatusError(500, "InternalError", "no"))


def run(snapshot: Path, *arguments: str) -> Result:
    line = ["what-if", "measured", "cart", "--snapshot", str(snapshot), *arguments]
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, line)


def test_the_command_says_the_same_each_time_in_eighty_columns(snapshot: Path) -> None:
    done = run(snapshot, "--weights", "zone-a=16,zone-b=3,zone-c=1")
    assert done.exit_code == 0
    assert done.output == run(snapshot, "--traffic", "zone-a=16,zone-b=3,zone-c=1").output
    assert max(map(len, done.output.splitlines()[:-1])) <= 80
    text = " ".join(done.output.split())
    assert "zone-a 80.0% 4 1.00 x 1.1" in text, done.output
    assert "kubectl annotate service -n default cart" in text
    document = json.loads(run(snapshot, "--weights", "zone-a=1", "-o", "json").output)
    assert list(document) == [
        "service",
        "origin",
        "demand",
        "endpoints",
        "values",
        "allowedLoad",
        "endpointsWithOtherHints",
        "measuredShares",
        "unknown",
    ]


def test_options_without_a_meaning_here_are_refused(snapshot: Path) -> None:
    done = run(snapshot, "--set", "replicas=3")
    assert done.exit_code == 64, done.output
    assert "leave --set out" in done.output
    done = CliRunner().invoke(main, ["what-if", "mesured", "cart"])
    assert done.exit_code == 64, done.output
    assert "'mesured cart' is not one Service" in done.output


def test_many_zones_are_too_many_for_shares_in_64ths() -> None:
    zones = {f"{number:02}": 1 for number in range(40)}
    prediction = predict(cart(40, **zones), **{zone: int(zone) ** 3 for zone in zones})
    assert prediction.is_worse
    text = " ".join(as_text(prediction, 80).split())
    assert "No hints keep the load within 1.2 x: " in text
    assert "kubectl" in text
