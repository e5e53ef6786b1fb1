"""Slices to subsets: after any history the incremental state says what a plain computation over all
slices says.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Endpoints
from sliceplane.api.discovery import EndpointSlice
from sliceplane.slices.endpoints.reverse import ReverseSource, read_content
from sliceplane.slices.endpoints.subsets import text_of

Document = dict[str, Any]

PORTS = st.sampled_from(
    [
        [],
        [{"name": "", "port": 80}],
        [{"name": "http", "port": 80}],
        [{"name": "http", "port": 80}, {"name": "metrics", "port": 9090, "protocol": "UDP"}],
        [{"name": "metrics", "port": 9090, "protocol": "UDP"}],
        [{"name": "", "port": 80}, {"name": "http", "port": 80}],
        [{"name": "any"}],
        [{"name": "any"}, {"name": "http", "port": 80}],
    ]
)
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        each: st.sampled_from([True, False, None]) for each in ("ready", "serving", "terminating")
    },
)


@st.composite
def endpoints(draw: st.DrawFn, family: str) -> Document:
    host = draw(st.integers(1, 5))
    found: Document = {
        "addresses": [f"10.0.0.{host}", "10.9.9.9"] if family == "IPv4" else [f"fd00::{host}"],
        "conditions": draw(CONDITIONS),
    }
    if draw(st.booleans()):
        found["targetRef"] = {
            "kind": "Pod",
            "namespace": "n",
            "name": f"p{host}",
            "uid": draw(st.sampled_from("uv")),
        }
    return found


@st.composite
def slices(draw: st.DrawFn) -> Document:
    family = draw(st.sampled_from(["IPv4", "IPv4", "IPv4", "IPv6", "FQDN"]))
    listed = st.just({"addresses": ["x.example.com"]}) if family == "FQDN" else endpoints(family)
    return {
        "addressType": family,
        "endpoints": draw(st.lists(listed, max_size=4)),
        "ports": draw(PORTS),
    }


def plain(found: list[Document], family: str) -> dict[tuple[Any, ...], dict[tuple[str, str], bool]]:
    """Port -> address -> ready.  Straight over the documents."""
    told: dict[tuple[Any, ...], dict[tuple[str, str], bool]] = {}
    for each in found:
        if each["addressType"] != family:
            continue
        ports: list[tuple[Any, ...]] = [
            (port["name"], port.get("protocol", "TCP"), port["port"])
            for port in each["ports"]
            if "port" in port
        ]
        if not each["ports"]:
            ports = [()]
        for endpoint in each["endpoints"]:
            said = endpoint["conditions"]
            ready = said.get("ready") is not False
            if not ready and said.get("terminating"):
                continue
            key = endpoint["addresses"][0], endpoint.get("targetRef", {}).get("uid", "")
            for port in ports:
                addresses = told.setdefault(port, {})
                addresses[key] = addresses.get(key, False) or ready
    return told


def expanded(subsets: list[Document]) -> dict[tuple[Any, ...], dict[tuple[str, str], bool]]:
    told: dict[tuple[Any, ...], dict[tuple[str, str], bool]] = {}
    for subset in subsets:
        ports = [
            (port.get("name", ""), port.get("protocol", "TCP"), port["port"])
            for port in subset.get("ports", ())
        ]
        assert len(ports) <= 1 or all(name for name, _, _ in ports), (
            "each of several ports needs a name"
        )
        for port in ports or [()]:
            assert port not in told, "a port is in one subset"
            told[port] = {
                (address["ip"], address.get("targetRef", {}).get("uid", "")): member == "addresses"
                for member in ("addresses", "notReadyAddresses")
                for address in subset.get(member, ())
            }
    return told


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | slices()), max_size=12)


@effort(300)
@given(STEPS, st.sampled_from(["IPv4", "IPv6"]))
def test_after_any_history_it_is_what_the_slices_say(
    steps: list[tuple[str, Document | None]], family: Literal["IPv4", "IPv6"]
) -> None:
    source = ReverseSource()
    held: dict[str, Document] = {}
    for name, found in steps:
        before = {each: source.render(each).text for each in ("IPv4", "IPv6")}  # type: ignore[arg-type]
        view = None if found is None else read_content(decode(encode(found), EndpointSlice))
        changed = source.put(name, view)
        held.pop(name, None)
        if found is not None:
            held[name] = found
        source.check()
        after = {each: source.render(each).text for each in ("IPv4", "IPv6")}  # type: ignore[arg-type]
        assert changed or before == after, "a change that was not told"
    rendered = source.render(family)
    subsets = json.loads(rendered.text)
    assert expanded(subsets) == plain(list(held.values()), family)
    assert rendered.total == sum(
        len(each.get(m, ())) for each in subsets for m in ("addresses", "notReadyAddresses")
    )
    contents = [
        json.dumps([each.get("addresses"), each.get("notReadyAddresses")], sort_keys=True)
        for each in subsets
        if each.get("ports") and each["ports"][0].get("name")
    ]
    assert len(contents) == len(set(contents)), "named ports with the same addresses share a subset"
    # The order of the history leaves no trace, and what is read back is recognised.
    anew = ReverseSource()
    for name in sorted(held, reverse=True):
        anew.put(name, read_content(decode(encode(held[name]), EndpointSlice)))
    assert anew.render(family) == rendered
    assert (
        text_of(decode(b'{"subsets":%s}' % rendered.text, Endpoints).subsets or (), named=True)
        == rendered.text
    )


def source_of(ready: int, waiting: int, ports: list[Document] | None = None) -> ReverseSource:
    source = ReverseSource()
    listed = [
        {"addresses": [f"10.1.{n // 200}.{n % 200 + 1}"], "conditions": {"ready": n < ready}}
        for n in range(ready + waiting)
    ]
    for start in range(0, len(listed), 100):
        found = {
            "addressType": "IPv4",
            "endpoints": listed[start : start + 100],
            "ports": ports or [{"port": 80}],
        }
        source.put(f"s{start}", read_content(decode(encode(found), EndpointSlice)))
    return source


@pytest.mark.parametrize(
    ("ready", "waiting", "kept"),
    [
        (1000, 0, (1000, 0)),
        (1001, 0, (1000, 0)),
        (1200, 50, (1000, 0)),
        (990, 30, (990, 10)),
        (0, 1001, (0, 1000)),
    ],
)
def test_no_more_than_a_thousand_addresses(ready: int, waiting: int, kept: tuple[int, int]) -> None:
    rendered = source_of(ready, waiting).render("IPv4")
    (subset,) = json.loads(rendered.text)
    assert (len(subset.get("addresses", ())), len(subset.get("notReadyAddresses", ()))) == kept
    assert rendered.total == ready + waiting


def test_a_hint_or_a_zone_is_no_change() -> None:
    source = ReverseSource()
    plain_slice: Document = {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [],
    }
    hinted = json.loads(json.dumps(plain_slice))
    hinted["endpoints"][0] |= {"zone": "a", "hints": {"forZones": [{"name": "a"}]}}
    assert source.put("x", read_content(decode(encode(plain_slice), EndpointSlice)))
    assert not source.put("x", read_content(decode(encode(hinted), EndpointSlice)))
