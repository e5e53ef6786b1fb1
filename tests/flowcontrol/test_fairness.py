"""What priority and fairness promise, with the levels that every server has: who gets how much, who
waits how long.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.server.fairness.control import FlowControl
from sliceplane.server.fairness.defaults import LEVELS
from sliceplane.server.fairness.seats import AHEAD_S_MAX, SeatTicket
from sliceplane.server.fairness.types import Flow, RequestAttributes

EVERYBODY = "system:authenticated"
ACCOUNTS = ("system:serviceaccounts", EVERYBODY)
LIST_PODS = RequestAttributes(verb="list", resource="pods", namespace="default")
UPDATE_LEASE = RequestAttributes(
    verb="update", group="coordination.k8s.io", resource="leases", namespace="kube-node-lease"
)


def control() -> FlowControl:
    return FlowControl(reads=400, writes=200)


def account(flows: FlowControl, number: int = 0, asked: RequestAttributes = LIST_PODS) -> Flow:
    return flows.classify(f"system:serviceaccount:shop:robot-{number}", ACCOUNTS, asked)


def fill(flows: FlowControl, flow: Flow, count: int, now: float = 0.0) -> list[SeatTicket]:
    return [flows.seats["read"].acquire(flow, now)[0] for _ in range(count)]


def test_who_is_in_which_level() -> None:
    flows = control()
    asked = {
        ("admin", ("system:masters", EVERYBODY), LIST_PODS): "exempt/exempt",
        (
            "system:anonymous",
            ("system:unauthenticated",),
            RequestAttributes("get", path="/readyz"),
        ): "probes/exempt",
        (
            "system:anonymous",
            ("system:unauthenticated",),
            RequestAttributes("get", path="/livez/ping"),
        ): "probes/exempt",
        (
            "system:anonymous",
            ("system:unauthenticated",),
            RequestAttributes("get", path="/version"),
        ): "global-default/global-default",
        ("system:node:n1", ("system:nodes", EVERYBODY), UPDATE_LEASE): "system-node-high/node-high",
        (
            "system:node:n1",
            ("system:nodes", EVERYBODY),
            RequestAttributes("patch", "", "nodes/status"),
        ): "system-node-high/node-high",
        ("system:node:n1", ("system:nodes", EVERYBODY), LIST_PODS): "system-nodes/system",
        ("system:kube-proxy", (EVERYBODY,), UPDATE_LEASE): "sliceplane-node-proxies/system",
        (
            "system:kube-controller-manager",
            (EVERYBODY,),
            UPDATE_LEASE,
        ): "system-leader-election/leader-election",
        (
            "system:kube-controller-manager",
            (EVERYBODY,),
            LIST_PODS,
        ): "kube-controller-manager/workload-high",
        (
            "system:serviceaccount:kube-system:a",
            ACCOUNTS,
            UPDATE_LEASE,
        ): "system-leader-election/leader-election",
        (
            "system:serviceaccount:kube-system:a",
            ACCOUNTS,
            LIST_PODS,
        ): "kube-system-service-accounts/workload-high",
        (
            "system:serviceaccount:kube-systems:a",
            ACCOUNTS,
            LIST_PODS,
        ): "service-accounts/workload-low",
        ("jane", (EVERYBODY,), LIST_PODS): "global-default/global-default",
        ("nobody", (), LIST_PODS): "catch-all/catch-all",
    }
    for (name, groups, wanted), expected in asked.items():
        flow = flows.classify(name, groups, wanted)
        assert f"{flow.schema.name}/{flow.level.name}" == expected, (name, wanted)


def test_controllers_stand_in_line_by_namespace_and_users_by_name() -> None:
    flows = control()
    manager = flows.classify("system:kube-controller-manager", (EVERYBODY,), LIST_PODS)
    assert manager.distinguisher == "default"
    assert account(flows, 7).distinguisher == "system:serviceaccount:shop:robot-7"


def test_nominal_seats_are_upstreams_shares() -> None:
    """nominalConcurrencyShares of 245 in all, rounded up, as upstream has it."""
    seats = control().seats["read"]
    assert {level.name: seats.nominal(level.name) for level in LEVELS} == {
        "catch-all": 9,
        "exempt": 0,
        "global-default": 33,
        "leader-election": 17,
        "node-high": 66,
        "system": 49,
        "workload-high": 66,
        "workload-low": 164,
    }


@pytest.mark.parametrize(
    ("name", "groups", "asked"),
    [
        ("admin", ("system:masters", EVERYBODY), LIST_PODS),
        ("system:node:n1", ("system:nodes", EVERYBODY), UPDATE_LEASE),
        ("system:node:n1", ("system:nodes", EVERYBODY), LIST_PODS),
        ("system:kube-controller-manager", (EVERYBODY,), UPDATE_LEASE),
        ("jane", (EVERYBODY,), LIST_PODS),
    ],
    ids=["admin", "node lease", "node", "leader", "user"],
)
def test_a_thousand_workloads_leave_a_seat_for(
    name: str, groups: tuple[str, ...], asked: RequestAttributes
) -> None:
    flows = control()
    for number in range(1000):
        fill(flows, account(flows, number), 10)
    flows.check()
    ticket, reason = flows.seats["read"].acquire(flows.classify(name, groups, asked), 1.0)
    assert (ticket.state, reason) == ("seated", None)


def test_a_level_alone_sits_on_all_that_others_lend_and_no_further() -> None:
    flows = control()
    seats = flows.seats["read"]
    seated = [ticket for ticket in fill(flows, account(flows), 1000) if ticket.state == "seated"]
    kept = {
        "catch-all": 9,
        "global-default": 17,
        "leader-election": 17,
        "node-high": 50,
        "system": 33,
    }
    assert (
        len(seated) == sum(seats.nominal(level.name) for level in LEVELS) - sum(kept.values()) - 33
    )
    flows.check()


def test_a_level_gets_its_nominal_seats_back_from_those_who_borrowed_them() -> None:
    flows = control()
    seats = flows.seats["read"]
    hogs = [ticket for ticket in fill(flows, account(flows), 1000) if ticket.state == "seated"]
    jane = flows.classify("jane", (EVERYBODY,), LIST_PODS)
    hers = fill(flows, jane, 33)
    assert sum(ticket.state == "seated" for ticket in hers) == 17
    for number, ticket in enumerate(hogs):
        for _ in seats.release(ticket, 1.0):
            pass
        if number == 15:
            break
    assert all(ticket.state == "seated" for ticket in hers)
    flows.check()


def test_who_asks_for_little_passes_who_asks_for_much() -> None:
    flows = control()
    seats = flows.seats["read"]
    tickets = fill(flows, account(flows, 0), 1000)
    now, hogs = 0.0, [ticket for ticket in tickets if ticket.state == "seated"]
    for ticket in hogs[:20]:
        now += 0.05
        seats.release(ticket, now)
    quiet = fill(flows, account(flows, 1), 1, now)[0]
    assert quiet.state == "waiting"
    passed = 0
    for ticket in hogs[20:]:
        now += 0.05
        passed += len(seats.release(ticket, now))
        if quiet.state == "seated":
            break
    assert passed <= AHEAD_S_MAX / 0.05 + 1


@given(
    st.lists(st.tuples(st.integers(0, 8), st.floats(0.0001, 2.0)), min_size=50, max_size=400),
    st.integers(1, 400),
)
@effort(30)
def test_nobody_is_passed_for_ever(hogs: list[tuple[int, float]], backlog: int) -> None:
    """However others come and how long they sit: a request that waits gets the seat of one of those
    who came before it, or of those who came in the second after it.
    """
    flows = FlowControl(reads=1, writes=1)
    seats = flows.seats["read"]
    low = next(level for level in LEVELS if level.name == "workload-low")
    now = 0.0
    running = fill(flows, account(flows, 0), 1)
    while running[-1].state == "seated":
        running += fill(flows, account(flows, 0), 1)
    fill(flows, account(flows, 0), backlog)
    victim = fill(flows, account(flows, 9), 1, now)[0]
    before = seats.waiting_in(low.name)
    passed_late = 0
    sitting = [ticket for ticket in running if ticket.state == "seated"]
    for number, seconds in hogs:
        now += seconds
        fill(flows, account(flows, number), 1, now)
        came = seats.release(sitting.pop(0), now)
        sitting += came
        passed_late += sum(ticket is not victim for ticket in came) if now > AHEAD_S_MAX else 0
        flows.check()
        if victim.state == "seated":
            return
        assert passed_late <= before, f"passed {passed_late} times"


def test_one_flow_does_not_take_all_places_in_line() -> None:
    flows = control()
    tickets = fill(flows, account(flows, 0), 2000)
    assert sum(ticket.state == "waiting" for ticket in tickets) == 300
    assert flows.tally("service-accounts").refused == {
        "queue-full": 2000 - 300 - flows.seats["read"].in_use
    }
    assert fill(flows, account(flows, 1), 1)[0].state == "waiting"


def test_what_nobody_speaks_of_is_refused_and_does_not_wait() -> None:
    flows = control()
    nobody = flows.classify("nobody", (), LIST_PODS)
    seated = 0
    while (answer := flows.seats["read"].acquire(nobody, 0.0))[1] is None:
        seated += 1
    assert answer[1] == "concurrency-limit"
    assert seated >= 9


def test_no_seats_at_all_refuse_at_once() -> None:
    flows = FlowControl(reads=0, writes=0)
    assert flows.seats["write"].acquire(account(flows), 0.0)[1] == "concurrency-limit"
    assert (
        flows.seats["write"].acquire(flows.classify("a", ("system:masters",), LIST_PODS), 0.0)[1]
        is None
    )


def test_writes_that_stand_still_leave_reads_alone() -> None:
    flows = control()
    for _ in range(1000):
        flows.seats["write"].acquire(account(flows), 0.0)
    assert flows.seats["read"].acquire(account(flows), 0.0)[0].state == "seated"


def test_lines_of_the_past_are_forgotten() -> None:
    flows = FlowControl(reads=1, writes=1)
    seats = flows.seats["read"]
    while fill(flows, account(flows), 1)[0].state == "seated":
        pass
    for number in range(5000):
        ticket = fill(flows, account(flows, number + 1), 1, number * 2.0)[0]
        seats.release(ticket, number * 2.0)
    pool = seats._pools["workload-low"]
    assert len(pool.lines) < 300
    assert len(pool.heap) < 4 * len(pool.lines) + 65
    flows.check()


def test_figures_have_upstreams_names() -> None:
    flows = control()
    fill(flows, account(flows), 2000)
    families = {
        family.name.removeprefix("apiserver_flowcontrol_"): family
        for family in flows.metrics.families()
    }
    assert sorted(families) == [
        "current_executing_requests",
        "current_inqueue_requests",
        "dispatched_requests_total",
        "nominal_limit_seats",
        "rejected_requests_total",
        "request_wait_duration_seconds",
    ]
    (refused,) = families["rejected_requests_total"].samples
    assert refused.labels == ("workload-low", "service-accounts", "queue-full")
