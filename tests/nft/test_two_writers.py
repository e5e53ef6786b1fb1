"""Two proxies on one node, by mistake or while one replaces the other: whose rules they are may be
unclear, what they mean never is.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.nft.fake import FakeKernel
from tests.nft.test_table import REF, Bench, fresh, key, meaning, objects

from sliceplane.node.nft.elements import RETIRE_AFTER_S
from sliceplane.node.nft.table import NftRules

Services = dict[int, tuple[int, ...]]


def writers(*names: str) -> tuple[Bench, ...]:
    """Their kernel is one: whoever writes hands it on (``FakeKernel`` replaces what it holds)."""
    kernel = FakeKernel()
    return tuple(Bench(state=NftRules(REF, writer=name), kernel=kernel) for name in names)


def test_a_change_does_not_land_in_the_table_of_another() -> None:
    """Before there was a writer's chain, the second change was taken, and svc-2 led to an endpoint
    of svc-1.
    """
    first, second = writers("a", "b")
    first.state.set_objects(key(1), objects(1, (1,)))
    assert first.sync()
    second.state.set_objects(
        key(2), objects(2, (2,))
    )  # its slot is the one that svc-1 has with the first
    assert second.sync()
    first.state.set_objects(key(1), objects(1, (3,)))
    assert not first.sync()
    assert meaning(first.kernel) == expected("b", {2: (2,)})
    assert first.sync()
    assert meaning(first.kernel) == expected("a", {1: (3,)})


def expected(writer: str, services: Services) -> dict[str, Any]:
    """As *writer* alone would have written it."""
    found = fresh(services)
    return {
        f"chain writer-{writer}" if name == "chain writer-0" else name: what
        for name, what in found.items()
    }


steps = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.integers(1, 4),
        st.one_of(st.none(), st.lists(st.integers(1, 6), unique=True, max_size=4).map(tuple)),
    ),
    max_size=40,
)


@given(steps)
def test_after_every_write_the_table_means_what_its_writer_wants(history: list[Any]) -> None:
    benches = writers("a", "b")
    known: tuple[Services, Services] = ({}, {})
    for who, number, targets in history:
        bench, services = benches[who], known[who]
        bench.state.set_objects(key(number), None if targets is None else objects(number, targets))
        if targets is None:
            services.pop(number, None)
        else:
            services[number] = targets
        wrote = False
        for _ in range(4):  # the change, perhaps refused; all anew; what was retired; nothing
            wrote = (bench.sync() and bench.commands > 0) or wrote
            bench.now += RETIRE_AFTER_S
        if wrote:
            assert meaning(bench.kernel) == expected("ab"[who], services)
