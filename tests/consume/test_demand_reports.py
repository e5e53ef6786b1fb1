"""Demand as nodes report it: what is written is read, and what anybody else writes does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.core import Service, ServiceSpec
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.consume.demand import (
    COUNT_MAX,
    DEMAND_LENGTH_MAX,
    DEMAND_SERVICES_MAX,
    MEASURED,
    UID_LENGTH,
    Demand,
    is_measured,
    read_demand,
    write_demand,
)

UIDS = st.text("0123456789abcdef", min_size=UID_LENGTH, max_size=UID_LENGTH)
COUNTS = st.dictionaries(UIDS, st.integers(0, COUNT_MAX), max_size=150)
#: entries as nobody should write them, and some that are valid
ENTRIES = st.one_of(
    st.text(),
    st.builds("{}:{}".format, UIDS, st.integers()),
    st.builds("{}:{}".format, st.text(max_size=9), st.text("0123456789٣+- _", max_size=20)),
)


@given(COUNTS)
def test_what_fits_is_read_as_it_was_written(counts: dict[str, int]) -> None:
    assert read_demand(write_demand(counts)) == Demand(counts, 0)


@given(st.integers(1, 600), st.integers(0, COUNT_MAX - 600))
def test_a_report_is_bounded_and_has_the_largest(services: int, least: int) -> None:
    counts = {f"{number:08x}": least + number for number in range(services)}
    text = write_demand(counts)
    written, invalid = read_demand(text)
    assert len(text) <= DEMAND_LENGTH_MAX
    assert invalid == 0
    assert len(written) <= DEMAND_SERVICES_MAX
    assert len(written) == min(services, DEMAND_SERVICES_MAX) or len(text) > DEMAND_LENGTH_MAX - 30
    assert sorted(written.values()) == sorted(counts.values())[-len(written) :]


@given(st.lists(ENTRIES).map(",".join))
def test_whatever_a_node_writes_is_valid_or_counted(text: str) -> None:
    counts, invalid = read_demand(text)
    assert len(counts) + invalid == (len(text.split(",")) if text else 0)
    assert all(0 <= count <= COUNT_MAX for count in counts.values())
    assert read_demand(write_demand(counts)).counts.items() <= counts.items()


@pytest.mark.parametrize(
    "text",
    [
        "0a1b2c3d",
        "0a1b2c3d:",
        "0a1b2c3d:-1",
        "0a1b2c3d:+1",
        "0a1b2c3d: 1",
        "0a1b2c3d:1_0",
        "0a1b2c3d:٣",
        f"0a1b2c3d:{COUNT_MAX + 1}",
        f"0a1b2c3d:{'9' * 4000}",
        "0a1b2c3:1",
        "0a1b2c3d4:1",
        "0a1b-c3d:1",
        "0a1b2c3é:1",
        " ",
        "0a1b2c3d:1" + " " * DEMAND_LENGTH_MAX,
    ],
)
def test_invalid_entries(text: str) -> None:
    assert read_demand(text) == Demand({}, 1)


def test_the_first_of_two_entries_counts() -> None:
    assert read_demand("0a1b2c3d:7,0a1b2c3d:9") == Demand({"0a1b2c3d": 7}, 1)


@pytest.mark.parametrize(
    ("mode", "field", "expected"),
    [
        (None, MEASURED, True),
        (MEASURED, None, True),
        (MEASURED, "PreferSameZone", True),
        ("sliceplane.dev/Balanced", MEASURED, False),
        ("Auto", MEASURED, False),
        ("Disabled", MEASURED, True),
        (None, "PreferSameZone", False),
        (None, None, False),
    ],
)
def test_which_services_ask(mode: str | None, field: str | None, *, expected: bool) -> None:
    metadata = ObjectMeta(annotations=None if mode is None else {ANNOTATION_TOPOLOGY_MODE: mode})
    spec = ServiceSpec(traffic_distribution=field)
    assert is_measured(Service(metadata=metadata, spec=spec)) is expected
