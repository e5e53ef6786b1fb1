"""Stories of agents on virtual time: production cores of both sides, over a server with real
semantics.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.farm import Farm
from tests.lab.sim.test_guard import SimulatedClient

from sliceplane.agent.controller import DELETIONS_MAX, AgentController
from sliceplane.agent.judge import LeaseJudge
from sliceplane.agent.tenure import WRONG_ANSWER_PAUSE_S, AgentConfig, Tenure
from sliceplane.api.codec import encode
from sliceplane.api.core import Lease
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import (
    EndpointSlices,
    Leases,
    Nodes,
    ServiceAccounts,
    ServiceCIDRs,
    Services,
)
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.consume.agents.registration import ANNOTATION_REFUSED, ANNOTATION_STATE, AgentPort
from sliceplane.diagnose.io.guarding import read_retained, release_retained
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job

_A = "192.0.2.10"
_READY = {"ready": True, "serving": True, "terminating": False}
_GONE = {"ready": False, "serving": False, "terminating": False}


def test_an_endpoint_is_ready_when_its_first_check_passed() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    agent.well = False
    farm.wait(20)
    assert farm.conditions(_A) == _GONE
    agent.well = True
    assert farm.wait_until(lambda: farm.is_ready(_A), 5) < 3
    assert farm.conditions(_A) == _READY
    (stored,) = farm.slices()
    assert stored["metadata"]["name"] == "web-web1-4"
    assert stored["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    assert stored["metadata"]["ownerReferences"][0]["name"] == "agent-web1"
    assert stored["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


def test_only_a_change_of_condition_writes_a_slice() -> None:
    farm = Farm()
    farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    version = farm.slices()[0]["metadata"]["resourceVersion"]
    farm.wait(300)
    assert farm.slices()[0]["metadata"]["resourceVersion"] == version


def test_a_process_that_fails_is_withdrawn_after_three_looks() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    agent.well = False
    assert farm.wait_until(lambda: not farm.is_ready(_A), 10) < 3 * 2.0 + 1
    assert farm.annotations(_A)[ANNOTATION_STATE] == "failing"


def test_an_agent_that_dies_is_withdrawn_within_20_s_and_forgotten_ten_minutes_later() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.wait(60)
    agent.kill()
    assert 10 < farm.wait_until(lambda: not farm.is_ready(_A), 20) <= 20
    assert farm.annotations(_A)[ANNOTATION_STATE] == "lost"
    farm.wait(500)
    assert farm.leases() == ["agent-web1"]
    farm.wait(200)
    assert farm.leases() == []
    assert farm.slices() == []


def test_an_agent_that_returns_is_ready_again_without_a_new_object() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    uid = farm.slices()[0]["metadata"]["uid"]
    agent.link.up = False
    farm.wait(60)
    assert not farm.is_ready(_A)
    agent.link.up = True
    assert farm.wait_until(lambda: farm.is_ready(_A), 10) < 7
    assert farm.slices()[0]["metadata"]["uid"] == uid
    farm.wait(60)
    assert farm.is_ready(_A)


def test_a_restart_of_the_agent_is_no_flap() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    version = farm.slices()[0]["metadata"]["resourceVersion"]
    agent.kill()
    farm.wait(3)
    farm.agent("web1", _A, start="2")
    farm.wait(60)
    assert farm.is_ready(_A)
    assert farm.slices()[0]["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("seconds", [60.0, 600.0])
def test_while_the_api_is_away_no_endpoint_is_lost(seconds: float) -> None:
    farm = Farm()
    agents = [farm.agent(f"web{n}", f"192.0.2.{n}") for n in range(10, 14)]
    farm.wait_until(lambda: farm.ready() == 4, 20)
    farm.wait(17)
    seen = []
    farm.sim.server.listeners.append(
        lambda event: seen.append(event) if event.record.key.resource.endswith("slices") else None
    )
    for link in (farm.judge_link, *(agent.link for agent in agents)):
        link.up = False
    farm.wait(seconds)
    for link in (farm.judge_link, *(agent.link for agent in agents)):
        link.up = True
    for agent in agents:
        assert agent.link.refused < 12 + seconds / 4.0, (
            "a server that is away is not asked without a rest"
        )
    assert farm.judge_link.refused < len(agents) * (12 + seconds / 0.8)
    farm.wait(120)
    assert farm.ready() == 4
    assert seen == []


def test_another_leader_counts_anew() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.wait(30)
    agent.link.up = False
    farm.wait(8)
    farm.new_judge()
    farm.wait(12)
    assert farm.is_ready(_A)
    farm.wait(10)
    assert not farm.is_ready(_A)


def test_the_clock_of_another_machine_means_nothing() -> None:
    """Times in the Lease are an hour off, either way."""
    farm = Farm()
    farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    for stamp in ("2001-01-01T00:00:00.000000Z", "2101-01-01T00:00:00.000000Z"):
        farm.stage.must(
            "patch",
            Leases,
            "default",
            {"spec": {"renewTime": stamp, "acquireTime": stamp}},
            "agent-web1",
        )
        farm.wait(60)
        assert farm.is_ready(_A)


def test_a_drain_serves_until_its_end_and_leaves_nothing() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    agent.tell(lambda core, now: core.on_drain(now))
    farm.wait(1)
    assert farm.conditions(_A) == {"ready": False, "serving": True, "terminating": True}
    assert agent.controller.drained_revisions().keys() == {"default/web-web1-4"}
    agent.tell(lambda core, now: core.on_stop(now))
    farm.wait(1)
    assert agent.controller.is_deregistered
    assert farm.slices() == []
    assert farm.leases() == []


def test_a_slice_that_another_writer_wants_otherwise_is_not_applied_without_end() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    sent: list[Any] = []
    send = agent.link.send
    agent.link.send = lambda actor, write, answer: (sent.append(write), send(actor, write, answer))  # type: ignore[method-assign,assignment]
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": "web",
        "uid": farm.service()["metadata"]["uid"],
    }
    farm.stage.must(
        "patch", EndpointSlices, "default", {"metadata": {"ownerReferences": [owner]}}, "web-web1-4"
    )
    farm.wait(30)
    owners = [owner["kind"] for owner in farm.slices()[0]["metadata"]["ownerReferences"]]
    assert sorted(owners) == ["Lease", "Service"]
    assert len([write for write in sent if write.resource is EndpointSlices]) == 1


def test_an_answer_about_a_lease_that_is_gone_makes_no_agent() -> None:
    judge = LeaseJudge()
    judge.on_lease("ns/a", "1", 15.0, 0.0)
    judge.on_removed("ns/a")
    assert judge.on_confirmed("ns/a", "1", 20.0) is False
    assert judge.next_deadline("ns/a", 20.0) is None


def test_what_is_lost_or_changed_by_hand_comes_back_with_the_next_renewal() -> None:
    farm = Farm()
    farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.stage.must("delete", EndpointSlices, "default", {}, "web-web1-4")
    farm.wait(7)
    assert farm.is_ready(_A)
    farm.stage.must(
        "patch", EndpointSlices, "default", {"ports": [{"name": "http", "port": 1}]}, "web-web1-4"
    )
    farm.wait(7)
    assert farm.slices()[0]["ports"][0]["port"] == 8080
    farm.stage.must("delete", Leases, "default", {}, "agent-web1")
    farm.wait(15)
    assert farm.is_ready(_A)
    assert farm.leases() == ["agent-web1"]


def test_slices_that_a_server_makes_up_are_deleted_in_parts() -> None:
    """As many as the server likes: planning them all at once held the loop for 82 ms."""
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    controller, now = agent.controller, farm.sim.scheduler.now
    made_up = [
        EndpointSlice(metadata=ObjectMeta(name=f"n{n}", namespace="default", uid=f"u{n}"))
        for n in range(2 * DELETIONS_MAX + 1)
    ]
    for each in made_up:
        controller.on_change(Change(EndpointSlices.key, None, each), now)
    deleted = set()
    for expected in (DELETIONS_MAX, DELETIONS_MAX, 1, 0):
        names = [write.name for write in controller.plan("default", now) if write.verb == "delete"]
        assert len(names) == expected
        deleted.update(names)
        for each in made_up:
            if each.metadata.name in names:
                controller.on_change(Change(EndpointSlices.key, each, None), now)
    assert deleted == {each.metadata.name for each in made_up}


def test_after_an_answer_about_another_object_the_agent_rests() -> None:
    """Otherwise it would write again at once, up to 3,000 times a second."""
    tenure = Tenure(AgentConfig(name="web1", host="h", start="1"), "default")
    write = tenure.renewal("free", 0.0)
    other = Lease(metadata=ObjectMeta(name="agent-web2", namespace="default"))
    for answer in (encode(other), encode({"metadata": {"name": "agent-web1"}}), b"[]", b"{"):
        tenure.on_answer(write, answer, 1.0, 7.0)
        assert tenure.paused_until == 7.0 + WRONG_ANSWER_PAUSE_S
        assert tenure.lease is None
        assert tenure.renewed_at is None
        assert "another object" in tenure.error
        tenure.paused_until, tenure.error = 0.0, ""


def test_a_resting_agent_plans_nothing_until_its_rest_has_ended() -> None:
    controller = AgentController(
        AgentConfig(name="web1", host="h", start="1"),
        (Farm().registration("web1", _A),),
        Rng(1),
        0.0,
    )
    (write,) = controller.plan("default", 0.0)
    controller.finished(Done(Job(key="default", writes=(write,)), (b"{}",)), 0.0)
    assert controller.plan("default", WRONG_ANSWER_PAUSE_S - 0.01) == ()
    (retried,) = controller.plan("default", WRONG_ANSWER_PAUSE_S)
    assert (retried.verb, retried.name) == (write.verb, write.name)


def test_objects_of_namespaces_without_a_registration_are_ignored() -> None:
    farm = Farm()
    controller = farm.agent("web1", _A).controller
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    foreign = EndpointSlice(metadata=ObjectMeta(name="web-web1-4", namespace="other", uid="u"))
    controller.on_change(Change(EndpointSlices.key, None, foreign), farm.sim.scheduler.now)
    controller.on_stop(farm.sim.scheduler.now)
    farm.wait(5)
    assert controller.is_deregistered


def test_an_agent_that_stops_deletes_its_lease_after_its_last_slice() -> None:
    farm = Farm()
    controller = farm.agent("web1", _A).controller
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    now = farm.sim.scheduler.now
    for n in range(DELETIONS_MAX):
        each = EndpointSlice(metadata=ObjectMeta(name=f"n{n}", namespace="default", uid=f"u{n}"))
        controller.on_change(Change(EndpointSlices.key, None, each), now)
    controller.on_stop(now)
    assert {write.resource for write in controller.plan("default", now)} == {EndpointSlices}


def test_a_service_that_goes_takes_the_endpoint_with_it_and_brings_it_back() -> None:
    farm = Farm()
    farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.stage.must("delete", Services, "default", {}, "web")
    farm.wait(5)
    assert farm.slices() == []
    farm.stage.must(
        "create",
        Services,
        "default",
        {"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}},
    )
    farm.wait(5)
    assert farm.is_ready(_A)


def test_a_changed_file_leaves_the_checks_of_other_services_as_they_were() -> None:
    ours = Farm().registration("web1", _A)
    checks = (CheckSpec(kind="ttl", period_s=30.0), CheckSpec(kind="tcp"))
    kept, changed = replace(ours, service="kept", checks=checks), replace(ours, service="changed")
    config = AgentConfig(name="web1", host="h", start="1")
    first = AgentController(config, (kept, changed), Rng(1), 0.0)
    first.on_report(kept.key, "ttl", True, "", 0.0)
    for probe in first.take_probes(0.0):
        first.on_result(probe, True, "connected", 0.0)
    under_way = first.take_probes(5.0)
    assert len(under_way) == 2
    second = AgentController(config, (kept, replace(changed, zone="a")), Rng(1), 6.0, earlier=first)
    states = {view.registration.service: view.state for view in second.view(6.0).registrations}
    assert states == {"kept": "passing", "changed": "unknown"}
    assert {probe.key for probe in second.take_probes(6.0)} == {kept.key, changed.key}, (
        "what no one hears is asked again"
    )
    second.on_result(under_way[0], False, "", 6.0)
    assert second.view(29.0).registrations[0].state == "passing"
    assert second.view(31.0).registrations[0].state == "failing", "the last pass was 30 s ago"


def test_after_a_restart_a_pass_is_waited_for_as_long_as_one_lasts() -> None:
    farm = Farm()
    checks = (CheckSpec(kind="ttl", period_s=30.0),)
    agent = farm.agent("web1", _A, checks=checks)
    agent.tell(lambda core, now: core.on_report("default/web", "ttl", True, "", now))
    farm.wait_until(lambda: farm.is_ready(_A), 5)
    agent.kill()
    farm.agent("web1", _A, start="2", checks=checks)
    farm.wait(20)
    assert farm.is_ready(_A)
    farm.wait(20)
    assert not farm.is_ready(_A)


def test_the_name_of_a_living_agent_of_another_host_is_refused() -> None:
    farm = Farm()
    farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    other = farm.agent("web1", "192.0.2.99", host="elsewhere")
    farm.wait(60)
    (view,) = other.controller.view(farm.sim.scheduler.now).registrations
    assert view.problem == "another host has the name 'web1' and lives: host-web1_1"
    assert farm.conditions("192.0.2.99") is None
    assert farm.is_ready(_A)


def test_the_name_of_a_dead_agent_of_another_host_is_taken_over() -> None:
    farm = Farm()
    farm.agent("web1", _A).kill()
    first = farm.agent("web1", _A, start="2")
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    first.kill()
    farm.agent("web1", "192.0.2.99", host="elsewhere")
    farm.wait_until(lambda: farm.is_ready("192.0.2.99"), 40)
    assert farm.conditions(_A) is None


def test_a_name_can_be_taken_by_force_and_the_other_stands_back() -> None:
    farm = Farm()
    first = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.agent("web1", "192.0.2.99", host="elsewhere", takeover=True)
    farm.wait(30)
    assert farm.is_ready("192.0.2.99")
    assert farm.conditions(_A) is None
    (view,) = first.controller.view(farm.sim.scheduler.now).registrations
    assert "elsewhere_1" in view.problem


def test_of_two_agents_of_one_address_and_port_the_later_serves_and_none_alternates() -> None:
    farm = Farm()
    first = farm.agent("one", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.wait(2)  # servers date objects to the second
    farm.agent("two", _A)
    farm.wait(30)
    states = {stored["metadata"]["name"]: stored for stored in farm.slices()}
    assert states["web-one-4"]["endpoints"][0]["conditions"] == _GONE
    assert states["web-two-4"]["endpoints"][0]["conditions"] == _READY
    sentence = "agent default/two brought 192.0.2.10 port 8080 to Service default/web later"
    assert states["web-one-4"]["metadata"]["annotations"][ANNOTATION_REFUSED] == sentence
    assert first.controller.view(farm.sim.scheduler.now).registrations[0].problem == sentence
    versions = {name: stored["metadata"]["resourceVersion"] for name, stored in states.items()}
    farm.wait(120)
    assert {
        s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in farm.slices()
    } == versions


def test_the_address_of_a_pod_is_refused_until_the_pod_is_gone() -> None:
    farm = Farm()
    farm.stage.pod("p", _A)
    farm.agent("web1", _A)
    farm.wait(20)
    assert farm.annotations(_A)[ANNOTATION_REFUSED] == "192.0.2.10 is the address of Pod default/p"
    assert not farm.is_ready(_A)
    farm.stage.gone("p")
    farm.wait(10)
    assert farm.is_ready(_A)


@pytest.mark.parametrize(
    ("resource", "body", "holder"),
    [
        (
            Nodes,
            {"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["192.0.2.0/28"]}},
            "the Pods of Node n1",
        ),
        (
            ServiceCIDRs,
            {"metadata": {"name": "s"}, "spec": {"cidrs": ["192.0.2.0/24"]}},
            "the cluster IPs of ServiceCIDR s",
        ),
    ],
)
def test_an_address_of_the_cluster_is_refused_unless_its_account_names_it(
    resource: Any, body: dict[str, Any], holder: str
) -> None:
    farm = Farm()
    farm.agent("web1", _A)
    farm.agent("web2", "192.0.3.1")
    farm.wait_until(lambda: farm.ready() == 2, 10)
    farm.stage.must("create", resource, "", body)
    farm.wait_until(lambda: not farm.is_ready(_A), 10)
    assert farm.annotations(_A)[ANNOTATION_REFUSED] == f"{_A} belongs to {holder}"
    assert farm.is_ready("192.0.3.1")
    account = {
        "name": "agent-web1",
        "labels": {"agent.sliceplane.dev/name": "web1"},
        "annotations": {"agent.sliceplane.dev/cidrs": "192.0.2.10/32"},
    }
    farm.stage.must("create", ServiceAccounts, "default", {"metadata": account})
    farm.wait_until(lambda: farm.is_ready(_A), 10)


def _many(farm: Farm, count: int) -> list:  # type: ignore[type-arg]
    agents = [
        farm.agent(f"vm{n}", f"192.0.2.{n}", ports=(AgentPort("http", 8080),))
        for n in range(1, count + 1)
    ]
    farm.wait_until(lambda: farm.ready() == count, 30)
    farm.wait(30)
    return agents


def test_many_that_fall_silent_together_are_held_and_return_unharmed() -> None:
    farm = Farm()
    agents = _many(farm, 10)
    for agent in agents[:6]:
        agent.link.up = False
    farm.wait(60)
    assert farm.ready() == 10
    (condition,) = farm.service()["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("AgentRemovalHeld", "True")
    assert condition["message"].startswith("6 agents fell silent together")
    for agent in agents[:6]:
        agent.link.up = True
    farm.wait(30)
    assert farm.ready() == 10
    assert farm.service()["status"]["conditions"][0]["status"] == "False"


def test_many_that_do_not_return_go_after_two_minutes_a_tenth_each_ten_seconds() -> None:
    farm = Farm()
    agents = _many(farm, 10)
    for agent in agents[:6]:
        agent.link.up = False
    began = farm.sim.scheduler.now
    farm.wait_until(lambda: farm.ready() == 9, 200)
    assert 125 < farm.sim.scheduler.now - began < 150
    farm.wait_until(lambda: farm.ready() == 4, 80)
    assert farm.sim.scheduler.now - began < 220


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_of_a_thousand_agents_six_hundred_are_cut_off_and_return_and_then_do_not() -> None:
    farm = Farm()
    agents = [farm.agent(f"vm{n}", f"198.18.{n // 250}.{n % 250 + 1}") for n in range(1000)]
    farm.wait(40)
    assert farm.ready() == 1000
    for up in (False, True, False):
        farm.wait(90)
        assert farm.ready() == 1000
        for agent in agents[:600]:
            agent.link.up = up
    left = [farm.ready()]
    while left[-1] > 400:
        farm.wait(10)
        left.append(farm.ready())
        assert len(left) < 30, left
    assert left[13] == 1000, "held for two minutes"
    assert max(before - now for before, now in pairwise(left)) <= 200, (
        "a tenth each ten seconds, two at the edges"
    )
    assert left[-1] == 400


def test_of_those_that_are_held_one_whose_ports_refuse_goes_at_once() -> None:
    farm = Farm()
    farm.grant("vm3", cidrs="192.0.2.0/24")
    agents = _many(farm, 10)
    farm.sim.server.refusing.add("192.0.2.3")
    for agent in agents[:6]:
        agent.link.up = False
    farm.wait(40)
    assert not farm.is_ready("192.0.2.3")
    assert farm.ready() == 9
    assert farm.service()["status"]["conditions"][0]["message"].startswith("5 agents")


def test_what_is_held_is_let_go_by_sliceplane_guard() -> None:
    farm = Farm()
    client: Any = SimulatedClient(farm.sim.server)
    agents = _many(farm, 8)
    for agent in agents[:5]:
        agent.link.up = False
    farm.wait(30)
    assert farm.ready() == 8
    (held,) = asyncio.run(read_retained(client, ""))
    assert (held.service, held.condition) == ("default/web", "AgentRemovalHeld")
    asyncio.run(release_retained(client, "default", ["web"], farm.sim.scheduler.now))
    farm.wait(5)
    assert farm.ready() == 3
    assert asyncio.run(read_retained(client, "")) == ()


def test_a_hold_whose_agents_are_gone_is_told_no_longer() -> None:
    """Their Leases were deleted, before or after another leader began."""
    for leaders in (1, 2):
        farm = Farm()
        for agent in _many(farm, 3):
            agent.link.up = False
        farm.wait(30)
        assert farm.service()["status"]["conditions"][0]["status"] == "True"
        if leaders == 2:
            farm.judge.kill()
        for name in farm.leases():
            farm.stage.must("delete", Leases, "default", {}, name)
        if leaders == 2:
            farm.new_judge()
        farm.wait(2)
        assert farm.service()["status"]["conditions"][0]["status"] == "False"


def test_one_of_two_is_never_held() -> None:
    farm = Farm()
    agents = _many(farm, 2)
    agents[0].link.up = False
    farm.wait(20)
    assert farm.ready() == 1


def test_a_machine_that_slept_checks_before_it_serves() -> None:
    farm = Farm()
    agent = farm.agent("web1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    agent.pause(3600.0)
    agent.well = False
    farm.wait(3599)
    assert not farm.is_ready(_A)
    farm.wait(2)
    agent.tell(lambda core, now: core.on_resume(now))
    farm.wait(30)
    assert not farm.is_ready(_A)
    agent.well = True
    farm.wait(10)
    assert farm.is_ready(_A)
