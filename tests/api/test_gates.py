"""Feature gates: their history, the flag, and its errors."""

from __future__ import annotations

import pytest

from sliceplane.api.gates import GATES, NEWEST, OLDEST, Gates, Release, parse_release, spec_at

OFF_NOW = {"EndpointSliceSubsetting", "ShardedListAndWatch", "TopologyAwareSubsetting"}


def test_the_newest_release_has_everything_that_ever_shipped() -> None:
    assert {name for name in GATES if not Gates().enabled(name)} == OFF_NOW


@pytest.mark.parametrize("name", GATES)
def test_histories_go_forward(name: str) -> None:
    entries = GATES[name]
    assert [entry.since for entry in entries] == sorted({entry.since for entry in entries})
    stages = [("ALPHA", "BETA", "GA").index(entry.stage) for entry in entries]
    assert stages == sorted(stages)
    for entry in entries:
        assert OLDEST <= entry.since <= NEWEST
        assert entry.stage != "ALPHA" or not entry.default
        assert entry.stage != "GA" or entry.default


@pytest.mark.parametrize(
    ("name", "release", "on"),
    [
        ("EndpointSlice", (1, 17), False),
        ("EndpointSlice", (1, 18), True),
        ("EndpointSliceProxying", (1, 17), False),
        ("EndpointSliceNodeName", (1, 20), False),
        ("EndpointSliceTerminatingCondition", (1, 21), False),
        ("EndpointSliceTerminatingCondition", (1, 22), True),
        ("TopologyAwareHints", (1, 23), False),
        ("TopologyAwareHints", (1, 24), True),
        ("ServiceTrafficDistribution", (1, 29), False),
        ("PreferSameTrafficDistribution", (1, 33), False),
    ],
)
def test_defaults_by_release(name: str, release: Release, on: bool) -> None:
    assert Gates(release).enabled(name) is on


def test_choices() -> None:
    gates = Gates.parse(" EndpointSlice=false , EndpointSliceSubsetting = T ,")
    assert not gates.enabled("EndpointSlice")
    assert gates.enabled("EndpointSliceSubsetting")
    assert not gates.enabled("TopologyAwareSubsetting")


def test_a_whole_stage_and_one_of_it() -> None:
    gates = Gates.parse("AllAlpha=true,TopologyAwareHints=false", (1, 22))
    assert gates.enabled("TopologyAwareSubsetting")
    assert not gates.enabled("TopologyAwareHints")
    assert not Gates.parse("AllBeta=false", (1, 22)).enabled("EndpointSliceTerminatingCondition")
    assert Gates.parse("AllBeta=false", (1, 22)).enabled("EndpointSlice")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Nonsense=true", "unrecognized feature gate: Nonsense"),
        ("EndpointSlice", "missing bool value for EndpointSlice"),
        (
            "EndpointSlice=maybe",
            (
                'invalid value of EndpointSlice=maybe, err: strconv.ParseBool: parsing "maybe": '
                "invalid syntax"
            ),
        ),
        (
            "TopologyAwareHints=false",
            "cannot set feature gate TopologyAwareHints to false, feature is locked to true",
        ),
    ],
)
def test_errors_in_the_words_of_upstream(text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        Gates.parse(text)
    assert str(caught.value) == error


def test_locked_is_no_harm_at_its_value_and_unlocked_in_an_older_release() -> None:
    assert Gates.parse("TopologyAwareHints=true").enabled("TopologyAwareHints")
    assert not Gates.parse("TopologyAwareHints=false", (1, 32)).enabled("TopologyAwareHints")
    with pytest.raises(ValueError, match="unrecognized feature gate: ServiceTrafficDistribution"):
        Gates.parse("ServiceTrafficDistribution=true", (1, 29))


def test_releases() -> None:
    assert parse_release("1.30") == parse_release("v1.30") == (1, 30)
    for text in ("", "1", "1.", "2.0", "1.15", "1.37", "1.30.1", "one.two"):
        with pytest.raises(ValueError, match=r"is not a release from 1\.16 to 1\.36"):
            parse_release(text)
    assert spec_at("EndpointSlice", (1, 15)) is None
