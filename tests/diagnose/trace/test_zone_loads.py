"""The load of zones that ``sliceplane trace`` shows beside where a packet goes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.diagnose.trace.traced import FOUR, READY_NODES, ask, asking, ep, service, slice_of

from sliceplane.api.core import Service
from sliceplane.consume.demand import MEASURED
from sliceplane.diagnose.trace.text import as_text

MEASURED_LOAD = """\
load by zone, demand by sliceplane.dev/measured-shares; 1 x is an even share
  ZONE    DEMAND  ENDPOINTS  LOAD NOW  DECIDED  PreferSameZone
  zone-a  75.0%   2          1.50 x    1.00 x   1.50 x
  zone-b  25.0%   2          0.50 x    1.00 x   0.50 x"""


def test_the_load_of_measured_zones_now_and_as_decided() -> None:
    """One endpoint of zone-b will serve zone-a."""
    measured = asking(MEASURED, "zone-a=48/64,zone-b=16/64")
    answer = ask(measured, slice_of("api-1", [*FOUR]), *READY_NODES)
    assert MEASURED_LOAD in as_text(answer, 80)
    assert max(map(len, MEASURED_LOAD.splitlines())) <= 80
    load = json.loads(json.dumps(answer.as_document()))["load"]
    assert load == {
        "value": MEASURED,
        "origin": "sliceplane.dev/measured-shares",
        "problem": "",
        "demand": {"zone-a": 0.75, "zone-b": 0.25},
        "endpoints": {"zone-a": 2, "zone-b": 2},
        "loads": {
            "now": {"zone-a": 1.5, "zone-b": 0.5},
            "decided": {"zone-a": 1.0, "zone-b": 1.0},
            "PreferSameZone": {"zone-a": 1.5, "zone-b": 0.5},
        },
    }


def test_the_load_of_balanced_zones_is_by_cpu() -> None:
    answer = ask(
        asking("sliceplane.dev/Balanced", "zone-a=48/64,zone-b=16/64"),
        slice_of("api-1", [*FOUR]),
        *READY_NODES,
    )
    assert answer.load is not None
    assert answer.load.origin == "allocatable CPU"
    assert answer.load.demand == {"zone-a": 0.5, "zone-b": 0.5}
    assert answer.load.loads["now"] == {"zone-a": 1.0, "zone-b": 1.0}


def test_a_value_that_gives_no_hints_says_why_beside_the_load() -> None:
    plain = asking(MEASURED, "zone-a=48/64,zone-b=16/64")
    annotations = {**(plain.metadata.annotations or {}), "sliceplane.dev/max-overload": "lots"}
    wrong = replace(plain, metadata=replace(plain.metadata, annotations=annotations))
    answer = ask(wrong, slice_of("api-1", [*FOUR]), *READY_NODES)
    assert answer.load is not None
    assert answer.load.problem in as_text(answer)
    assert "'lots'" in answer.load.problem
    assert answer.load.loads["decided"] == {"zone-a": 1.0, "zone-b": 1.0}, "even, without hints"


@pytest.mark.parametrize(
    ("asked", "endpoints"),
    [
        (service(trafficDistribution="PreferSameZone"), FOUR),
        (asking(MEASURED, internalTrafficPolicy="Local"), FOUR),
        (asking(MEASURED), (ep("10.1.1.1", "api-1", "node-a", "zone-a", flags=""),)),
    ],
    ids=["another value", "policy Local", "no ready endpoint"],
)
def test_there_is_no_load_where_hints_do_not_follow_shares(asked: Service, endpoints: Any) -> None:
    answer = ask(asked, slice_of("api-1", [*endpoints]), *READY_NODES)
    assert answer.load is None
    assert "load by zone" not in as_text(answer)
