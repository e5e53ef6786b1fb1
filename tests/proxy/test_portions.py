"""A Service of very many ports goes to the kernel in portions: bounded, others first, and whole at
the end.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.iptables.restorer import Machine as IptablesMachine
from tests.nft.machine import NODE, AnyMachine, make_slice, service
from tests.nft.machine import Machine as NftMachine

from sliceplane.consume.bounds import DESTINATIONS_MAX, PORTS_MAX, TARGETS_MAX
from sliceplane.node import schedule, tracker
from sliceplane.node.schedule import LARGE, PORTION


def ports(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"name": f"p{number}", "port": number, "protocol": "TCP"}
        for number in range(first, first + count)
    ]


def big(first: int, count: int, name: str = "big", **spec: Any) -> Any:
    return service(name, 9, ports=ports(first, count), **spec)


def one_write(machine: AnyMachine) -> int:
    """The size of the next transaction."""
    deadline = machine.plane.schedule.next_deadline()
    assert deadline is not None
    machine.now = max(machine.now, deadline)
    transaction = machine.plane.take_transaction(machine.now)
    if transaction is None:
        return 0
    assert machine._taken(transaction)
    machine.plane.on_success(machine.now)
    return int(transaction.size)


@pytest.fixture(params=[NftMachine, IptablesMachine])
def machine(request: Any) -> AnyMachine:
    made: AnyMachine = request.param()
    made.put(service(), make_slice(["10.0.0.1"]))
    made.sync()
    return made


def test_others_do_not_wait_for_a_service_of_very_many_ports(
    machine: AnyMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "PORTION", 150)
    monkeypatch.setattr(tracker, "PORTION_OF_CHAINS", 150)
    machine.put(big(1, 300), make_slice(["10.0.0.2", "10.0.0.3"], "big", ports=ports(1, 300)))
    sizes = [one_write(machine)]
    assert machine.plane.tracker.portions.behind
    machine.put(service("later", 2), make_slice(["10.0.0.7"], "later"))
    one_write(machine)
    assert next(iter(machine_answers(machine, "172.30.0.2"))) == "10.0.0.7 8080"
    assert machine.plane.tracker.portions.behind, "the large one is not done yet"
    while machine.plane.tracker.portions.behind:
        assert machine.plane.schedule.freshness.pending_since is not None, (
            "the kernel does not have it all, and nobody knows"
        )
        sizes.append(one_write(machine))
    assert len(sizes) >= 4
    assert max(sizes) < 12 * 150
    assert {machine_answers(machine, "172.30.0.9", port) for port in (1, 150, 300)} == {
        (f"10.0.0.2 {port}", f"10.0.0.3 {port}") for port in (1, 150, 300)
    }
    machine.drop(big(1, 300))
    one_write(machine)
    assert machine.plane.tracker.portions.behind
    machine.sync()
    assert not machine.plane.tracker.portions.behind


def machine_answers(machine: AnyMachine, ip: str, port: int = 80) -> tuple[str, ...]:
    return tuple(
        sorted(
            outcome.to for outcome in machine._trace("local", "10.0.9.9", ip, "tcp", port, iif="")
        )
    )


changes = st.lists(
    st.one_of(
        st.tuples(st.just("ports"), st.integers(1, 60), st.integers(0, 70)),
        st.tuples(
            st.just("endpoints"), st.lists(st.integers(1, 9), max_size=4, unique=True), st.just(0)
        ),
        st.tuples(st.just("write"), st.just(0), st.just(0)),
        st.tuples(st.just("doubt"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@given(changes)
def test_after_any_history_the_kernel_has_what_it_would_have_at_once(history: list[Any]) -> None:
    """A port that stays never leads nowhere meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracker, "PORTION", 15)
        patch.setattr(tracker, "PORTION_OF_CHAINS", 15)
        patch.setattr(schedule, "LARGE", 8)
        for kind in (NftMachine, IptablesMachine):
            machine = kind()
            served: set[int] = set()
            machine.put(make_slice(["10.0.0.1"], "big", ports=ports(1, 130)))
            for what, first, count in history:
                if what == "ports":
                    found = set(range(first, first + count))
                    served &= found
                    machine.put(big(first, count))
                elif what == "endpoints":
                    addresses = [f"10.0.0.{number}" for number in first] or ["10.0.0.1"]
                    machine.put(make_slice(addresses, "big", ports=ports(1, 130), version=7))
                elif what == "doubt":
                    machine.plane.request_full_write(machine.now)
                elif machine.plane.schedule.due(machine.now):
                    one_write(machine)
                    assert all(
                        "172.30.0.9" not in machine_answers(machine, "172.30.0.9", port)[0]
                        for port in served
                    )
                    if not machine.plane.tracker.portions.behind and any(
                        key[1] == "ns/big" for key in machine.known
                    ):
                        known = [
                            each for (_, name), each in machine.known.items() if name == "ns/big"
                        ]
                        served = {port.port for each in known for port in each.spec.ports or ()}
            machine.sync()
            assert not machine.plane.tracker.portions.behind
            fresh = kind()
            fresh.put(*machine.known.values())
            fresh.sync()
            for port in range(1, 131, 7):
                assert machine_answers(machine, "172.30.0.9", port) == machine_answers(
                    fresh, "172.30.0.9", port
                )


def test_what_a_service_may_ask_for_is_bounded_and_the_same_everywhere() -> None:
    addresses = [f"198.18.{number >> 8}.{number & 255}" for number in range(5_000)]
    huge = service("huge", 3, externalIPs=addresses, ports=ports(1, 80))
    machine = NftMachine()
    machine.put(huge, make_slice(["10.0.0.1"], "huge", ports=ports(1, 80)))
    machine.sync()
    (key,) = machine.plane.tracker.services()
    states = machine.plane.tracker.state(key)
    assert sum(len(state.port.external_ips) for state in states) <= DESTINATIONS_MAX
    assert states[0].port.external_ips == tuple(addresses[: DESTINATIONS_MAX // 80])
    assert "4,988 external addresses beyond 1,000" in str(machine.plane.tracker.excess(key))
    assert len(machine.plane.tracker.unserved) == 1


def test_endpoints_times_ports_are_bounded_before_they_are_multiplied_out() -> None:
    machine = NftMachine()
    many = [{"name": f"p{number}", "port": number, "protocol": "TCP"} for number in range(1, 101)]
    machine.put(service("huge", 3, ports=many))
    for part in range(100):
        rows = [f"10.{part}.{number >> 8}.{number & 255}" for number in range(1_000)]
        found = make_slice(rows, "huge", ports=many, version=part + 1)
        document = found.metadata
        machine.plane.on_slice(None, _renamed(found, f"{document.name}-{part}"), 0.0)
    (key,) = machine.plane.tracker.services()
    states = machine.plane.tracker.state(key)
    assert sum(len(state.categories.cluster) for state in states) == TARGETS_MAX
    assert states[0].categories.cluster[0].ip == "10.0.0.0"


def _renamed(found: Any, name: str) -> Any:
    return msgspec.structs.replace(
        found, metadata=msgspec.structs.replace(found.metadata, name=name)
    )


def test_bounds_are_far_above_what_ordinary_services_have() -> None:
    assert LARGE + DESTINATIONS_MAX < PORTION < PORTS_MAX


def crowd(count: int, name: str, version: int = 1) -> Any:
    return make_slice(
        [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(count)], name, version=version
    )


def test_a_heavy_service_that_changes_all_the_time_has_a_fifth_and_others_go_on(
    machine: AnyMachine,
) -> None:
    """Issue 30: every change of one endpoint had the node read all of them again, at once and for
    ever; of deletions none waits, since the addresses may be another's.
    """
    size = PORTION + 1
    machine.put(service("heavy", 5), crowd(size, "heavy"))
    machine.sync()
    machine.now += 1.0
    slices = machine.plane.tracker._slices
    read: list[str] = []
    endpoints = slices.endpoints
    slices.endpoints = lambda key: read.append(key.name) or endpoints(key)  # type: ignore[method-assign,func-returns-value]
    for number in range(100):  # 2 s of changes, 20 ms apart; a write takes 50 ms
        machine.put(crowd(size + number % 3, "heavy", version=2 + number))
        if number % 20 == 0:
            machine.put(
                service(f"other-{number}", 10 + number // 20),
                make_slice(["10.9.9.9"], f"other-{number}"),
            )
        if machine.plane.schedule.due(machine.now):
            transaction = machine.plane.take_transaction(machine.now)
            if transaction is not None:
                assert machine._taken(transaction)
                machine.now += 0.05
                machine.plane.on_success(machine.now)
            if number % 20 == 0:
                assert machine_answers(machine, f"172.30.0.{10 + number // 20}") == (
                    "10.9.9.9 8080",
                )
        machine.now += 0.02
    assert 5 <= read.count("heavy") <= 25, (
        f"all its endpoints were read {read.count('heavy')} times"
    )
    machine.drop(service("heavy", 5))
    machine.put(crowd(size, "heavy", version=999))
    assert machine.plane.schedule.due(machine.now)
    one_write(machine)
    assert machine_answers(machine, "172.30.0.5") != ("10.0.0.1 8080",), "it is gone at once"
    machine.sync()


def test_triggers_and_progress_of_others_do_not_wait_for_a_heavy_service(
    machine: AnyMachine,
) -> None:
    size = PORTION + 1
    machine.put(service("heavy", 5), crowd(size, "heavy"))
    machine.sync()
    machine.now += 1.0
    portions = machine.plane.tracker.portions
    machine.put(crowd(size - 1, "heavy", version=2))
    one_write(machine)
    assert portions.complete == portions.number
    machine.put(crowd(size, "heavy", version=3))
    assert machine.plane.schedule.due(machine.now)
    machine.plane.take_transaction(machine.now)  # it rests: nothing is written
    resting_since = portions.number
    assert portions.complete == resting_since - 1
    machine.put(service("other", 6), make_slice(["10.9.9.9"], "other"))
    assert machine.plane.schedule.due(machine.now), "others do not rest"
    one_write(machine)
    assert portions.complete == resting_since - 1, "what was told since is not complete"
    one_write(machine)
    assert portions.complete == portions.number


@pytest.mark.parametrize("kind", [NftMachine, IptablesMachine])
@pytest.mark.parametrize("sticky", [False, True])
def test_targets_that_are_chains_are_bounded_and_local_ones_stay(
    kind: Any, sticky: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 30: 20,000 chains took a kernel 10 s (iptables) and 45 s (affinity), growing with the
    square.
    """
    monkeypatch.setattr(tracker, "CHAINS_MAX", 40)
    monkeypatch.setattr(tracker, "STICKY_MAX", 20)  # each bound is looked at from this size on
    rows = [{"name": f"p{n}", "port": n, "protocol": "TCP"} for n in (1, 2)]
    endpoints = [
        {"addresses": [f"10.0.1.{n}"], "nodeName": NODE if n == 199 else "other"}
        for n in range(100, 200)
    ]
    affinity = {"sessionAffinity": "ClientIP"} if sticky else {}
    machine = kind()
    machine.put(service("big", 9, ports=rows, **affinity), make_slice(endpoints, "big", ports=rows))  # type: ignore[arg-type]
    machine.sync()
    most = 10 if sticky else 20 if kind is IptablesMachine else 100
    found = {answer.split()[0] for answer in machine_answers(machine, "172.30.0.9", 1)}
    assert len(found) == most
    assert "10.0.1.199" in found, "what is on this node stays"
    key = next(key for key in machine.plane.tracker.services() if key.name == "big")
    assert (key in machine.plane.tracker.unserved) == (most < 100)
    assert ("endpoints of a port" in str(machine.plane.tracker.excess(key))) == (most < 100)
