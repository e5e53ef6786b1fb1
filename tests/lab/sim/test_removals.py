"""``told-is-never-held``: what a Pod says itself goes from slices in time, and the check knows
since when.
"""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, MANAGED_BY_CONTROLLER
from sliceplane.api.requests import Verb, Write
from sliceplane.api.scheme import EndpointSlices, Pods, Resource, Services
from sliceplane.lab.sim.checks.removals import Removals
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.faults import parse_faults
from sliceplane.lab.sim.simulation import Options, Simulation

TOLD_S = 600.0


class Stage:
    """A cluster in which only this test writes."""

    def __init__(self) -> None:
        options = Options(
            seed=1, steps=0, faults=parse_faults("none"), controllers=("serviceaccount",)
        )
        self.sim = Simulation(options)
        self.removals = Removals(
            self.sim.server, self.sim.scheduler, reported_s=TOLD_S, inferred_s=TOLD_S
        )
        self.sim.server.listeners.append(self.removals.on_commit)
        self.sim.begin()

    def write(
        self, verb: Verb, resource: Resource, name: str, body: dict[str, Any], subresource: str = ""
    ) -> Any:
        whole = (
            {"apiVersion": resource.api_version, "kind": resource.kind, **body}
            if verb == "create"
            else body
        )
        at = "" if verb == "create" else name
        return self.sim.server.execute(
            Write(
                verb=verb,
                resource=resource,
                namespace="default",
                name=at,
                subresource=subresource,
                body=encode(whole),
            )
        )

    def service(self, *, publishes: bool) -> None:
        spec = {
            "selector": {"app": "web"},
            "ports": [{"port": 80}],
            "publishNotReadyAddresses": publishes,
        }
        self.write("create", Services, "shop", {"metadata": {"name": "shop"}, "spec": spec})

    def rest(self, seconds: float) -> None:
        self.sim.scheduler.run_until(self.sim.scheduler.now + seconds)

    def not_ready_and_shown(self) -> None:
        spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "web"}]}
        self.write(
            "create", Pods, "p", {"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": spec}
        )
        conditions = [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]
        status = {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "podIPs": [{"ip": "10.0.0.9"}],
            "conditions": conditions,
        }
        self.write("patch", Pods, "p", {"status": status}, "status")
        uid = next(record.uid for record in self.sim.server.records(Pods) if record.key.name == "p")
        labels = {LABEL_SERVICE_NAME: "shop", LABEL_MANAGED_BY: MANAGED_BY_CONTROLLER}
        reference = {"kind": "Pod", "namespace": "default", "name": "p", "uid": uid}
        endpoint = {
            "addresses": ["10.0.0.9"],
            "conditions": {"ready": True},
            "targetRef": reference,
        }
        body = {
            "metadata": {"name": "shop-1", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [endpoint],
        }
        self.write("create", EndpointSlices, "shop-1", {**body, "ports": [{"port": 80}]})


def test_an_endpoint_that_stays_is_found() -> None:
    stage = Stage()
    stage.service(publishes=False)
    stage.not_ready_and_shown()
    stage.rest(TOLD_S)
    stage.removals.check()
    stage.rest(1.0)
    with pytest.raises(Broken, match=r"p is an endpoint 601\.0 s after it left, not 600"):
        stage.removals.check()


@pytest.mark.parametrize("anew", [True, False])
def test_seed_100211_a_service_that_showed_pods_that_are_not_ready_has_time_from_its_change(
    anew: bool,
) -> None:
    """Its slices were right until then, also those that a Service of the same name has left."""
    stage = Stage()
    stage.service(publishes=True)
    stage.not_ready_and_shown()
    stage.rest(2 * TOLD_S)
    stage.removals.check()
    if anew:
        stage.write("delete", Services, "shop", {})
        stage.service(publishes=False)
    else:
        stage.write("patch", Services, "shop", {"spec": {"publishNotReadyAddresses": False}})
    stage.rest(TOLD_S)
    stage.removals.check()
    stage.rest(1.0)
    with pytest.raises(Broken, match=r"p is an endpoint 601\.0 s after it left"):
        stage.removals.check()
