"""The emulated scheduler's order of nodes: equal to a scan of all of them, after a look at few."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sliceplane.emulation.nodes import EmulatedNode
from sliceplane.emulation.placement import Placement

ZONES = ("zone-a", "zone-b", "zone-c", "")


def emulated(number: int, zone: str) -> EmulatedNode:
    return EmulatedNode(
        name=f"node-{number}", zone=zone, pod_cidrs=("10.0.0.0/24",), addresses=("192.0.2.1",)
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("place", "drop", "rezone")),
        st.integers(0, 11),  # which Pod or node
        st.sampled_from(("owner-1", "owner-2")),
        st.sampled_from(ZONES),
        st.frozensets(st.integers(0, 11)),  # nodes that do not fit
    ),
    max_size=40,
)


@given(
    zones=st.lists(st.sampled_from(ZONES), min_size=1, max_size=12),
    first=st.permutations(ZONES),
    steps=STEPS,
)
def test_the_chosen_node_is_the_least_of_all_that_fit(
    zones: list[str], first: list[str], steps: list[tuple[str, int, str, str, frozenset[int]]]
) -> None:
    nodes = [emulated(number, zone) for number, zone in enumerate(zones)]
    placement = Placement(nodes, first)
    pods: dict[str, tuple[int, str]] = {}  # uid -> node, owner
    for turn, (step, number, owner, zone, excluded) in enumerate(steps):
        at = number % len(nodes)
        if step == "place":
            chosen = placement.choose(owner, lambda name: int(name[5:]) not in excluded)  # noqa: B023
            assert chosen == least(nodes, pods, owner, first, excluded)
            if chosen is not None:
                uid = f"pod-{turn}"
                placement.put(uid, chosen, owner, frozenset())
                pods[uid] = nodes.index(chosen), owner
        elif step == "rezone":
            nodes[at] = replace(nodes[at], zone=zone)
            placement.rezone(nodes[at])
        elif pods:
            uid = sorted(pods)[number % len(pods)]
            placement.drop(uid)
            del pods[uid]
        placement.check()


def least(
    nodes: list[EmulatedNode],
    pods: dict[str, tuple[int, str]],
    owner: str,
    first: list[str],
    excluded: frozenset[int],
) -> EmulatedNode | None:
    """Scans all nodes."""
    loads = [at for at, _ in pods.values()]

    def rank(at: int) -> tuple[int, int, int, int, str]:
        zone, name = nodes[at].zone, nodes[at].name
        beside = sum(nodes[n].zone == zone and who == owner for n, who in pods.values())
        return beside, first.index(zone), loads.count(at), len(name), name

    fitting = [at for at in range(len(nodes)) if at not in excluded]
    return nodes[min(fitting, key=rank)] if fitting else None


def test_a_pod_is_placed_among_thousands_of_nodes_after_a_look_at_one() -> None:
    """With a scan of all nodes, ``what-if`` at 5,000 of them computed for minutes."""
    placement = Placement([emulated(number, ZONES[number % 3]) for number in range(5000)])
    looked_at: list[str] = []
    for number in range(1000):
        chosen = placement.choose("owner", lambda name: not looked_at.append(name))
        assert chosen is not None
        placement.put(f"pod-{number}", chosen, "owner", frozenset())
    assert len(looked_at) == len(set(looked_at)) == 1000
