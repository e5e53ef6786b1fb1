"""Maps of rules, anonymous and named, against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.node.observing.graph import (
    OUTPUT,
    PREROUTING,
    RuleEffects,
    RuleGraph,
    destination_key,
    packed_target,
)

KEY = destination_key("10.96.0.1", "TCP", 80)
_TARGETS = st.integers(1, 9).map(lambda number: packed_target(f"10.1.0.{number}", 8080))
#: elements as messages of the kernel have them
_MESSAGES = st.lists(st.lists(_TARGETS, min_size=1, max_size=4), max_size=4)


def hooked() -> RuleGraph:
    graph = RuleGraph("IPv4")
    for hook, name in ((PREROUTING, "nat-prerouting"), (OUTPUT, "nat-output")):
        graph.add_chain(name, hook)
        graph.set_rule(name, 1, RuleEffects(maps=("services",)))
    graph.add_chain("service")
    graph.set_element("services", KEY, "service")
    return graph


@given(messages=_MESSAGES, later=_MESSAGES)
def test_an_anonymous_map_has_the_targets_of_its_messages(
    messages: list[list[bytes]], later: list[list[bytes]]
) -> None:
    graph = hooked()
    graph.set_rule("service", 7, RuleEffects(target_maps=("__map1",)))
    for _ in range(2):  # a dump that is repeated, or events that a dump has already seen
        for message in messages:
            before = graph.version
            graph.add_targets("__map1", b"".join(message))
            assert graph.version != before
    assert graph.targets(KEY) == {target for message in messages for target in message}
    # The kernel uses the name again.
    graph.remove_rule("service", 7)
    assert graph.targets(KEY) == frozenset()
    graph.set_rule("service", 8, RuleEffects(target_maps=("__map1",)))
    for message in later:
        graph.add_targets("__map1", b"".join(message))
    assert graph.targets(KEY) == {target for message in later for target in message}
    graph.remove_map("__map1")
    assert graph.targets(KEY) == frozenset()


@given(elements=st.lists(st.tuples(st.integers(0, 3), _TARGETS)), removed=st.integers(0, 3))
def test_a_named_map_has_its_newest_elements(
    elements: list[tuple[int, bytes]], removed: int
) -> None:
    graph = hooked()
    graph.set_rule("service", 7, RuleEffects(target_maps=("named",)))
    expected: dict[bytes, bytes] = {}
    for number, target in elements:
        key = bytes([number])
        graph.set_element("named", key, target)
        expected[key] = target
    graph.remove_element("named", bytes([removed]))
    expected.pop(bytes([removed]), None)
    assert graph.targets(KEY) == set(expected.values())
