"""``sliceplane estimate``: the KEP's formulas, its sample cases word for word, and sizes that are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.codec import decode_document
from sliceplane.cli.main import main
from sliceplane.documents.wire import human_bytes
from sliceplane.estimate.kep import SAMPLES
from sliceplane.estimate.objects import RealSizes, stored_endpoints, stored_slice
from sliceplane.estimate.report import as_document
from sliceplane.estimate.scale import Case, Design, KepSizes, Scenario, cost

BIG, SMALL = (sample.case for sample in SAMPLES)


@pytest.mark.parametrize(
    ("scenario", "design", "writes", "events", "total"),
    [
        # the KEP's "Sample Case 1", figure by figure
        (Scenario.CREATION, Design.ENDPOINTS, 1, 5_000, 10e9),
        (Scenario.CREATION, Design.SLICES, 200, 1_000_000, 10e9),
        (Scenario.CREATION, Design.SINGLE, 20_000, 100_000_000, 100e9),
        (Scenario.UPDATE, Design.ENDPOINTS, 1, 5_000, 10e9),
        (Scenario.UPDATE, Design.SLICES, 1, 5_000, 50e6),
        (Scenario.UPDATE, Design.SINGLE, 1, 5_000, 5e6),
        (Scenario.ROLLING, Design.ENDPOINTS, 20_000, 100_000_000, 200e12),
        (Scenario.ROLLING, Design.SLICES, 20_000, 100_000_000, 1e12),
        (Scenario.ROLLING, Design.SINGLE, 20_000, 100_000_000, 100e9),
    ],
)
def test_formulas_give_the_figures_of_case_1(
    scenario: Scenario, design: Design, writes: int, events: int, total: float
) -> None:
    found = cost(BIG, scenario, design, KepSizes())
    assert (found.writes, found.events, found.total_bytes) == (writes, events, total)


def test_formulas_give_the_figures_of_case_2() -> None:
    totals = {
        (scenario, design): cost(SMALL, scenario, design, KepSizes()).total_bytes
        for scenario in Scenario
        for design in Design
    }
    assert totals[Scenario.CREATION, Design.SINGLE] == 200_000  # the KEP's 200KB
    assert totals[Scenario.UPDATE, Design.SLICES] == 20_000  # 20 endpoints of 100 bytes; the KEP says ~1KB * 10
    assert totals[Scenario.ROLLING, Design.SINGLE] == 200_000


def test_sample_cases_are_the_keps_word_for_word() -> None:
    kep = CliRunner().invoke(main, ["estimate"]).output
    for text in (
        "Sample Case 1: 20,000 endpoints, 5,000 nodes",
        "2.0MB * 5000 * 20k = 200 TB",
        "10KB * 5000 * 200 = 10GB",
        "~10k * 5000 = 50MB",
        "5000 * 20000 = 100,000,000",
        "Sample Case 2: 20 endpoints, 10 nodes",
        "~1KB * 200 = 200KB",
    ):
        assert text in kep, text


@given(pods=st.integers(1, 3000), nodes=st.integers(1, 100), per_slice=st.integers(1, 1000))
def test_creation_sends_every_endpoint_once_to_every_node(pods: int, nodes: int, per_slice: int) -> None:
    class OneByteEach:
        def object_bytes(self, design: Design, endpoints: int) -> int:
            return endpoints

        event_bytes = object_bytes

    case = Case(pods=pods, nodes=nodes, per_slice=per_slice)
    for design in Design:
        found = cost(case, Scenario.CREATION, design, OneByteEach())
        assert found.total_bytes == pods * nodes
        assert (found.writes - 1) * found.object_bytes < pods <= found.writes * found.object_bytes


def test_sizes_are_those_of_real_objects() -> None:
    json_sizes, protobuf_sizes = RealSizes("json"), RealSizes("protobuf")
    stored = stored_slice(100)
    assert json_sizes.object_bytes(Design.SLICES, 100) == len(stored)
    document = decode_document(stored)
    assert len(document["endpoints"]) == 100
    assert document["metadata"]["ownerReferences"][0]["kind"] == "Service"
    assert document["endpoints"][7]["zone"] in {"zone-a", "zone-b", "zone-c"}
    assert protobuf_sizes.object_bytes(Design.SLICES, 100) < len(stored)
    assert json_sizes.event_bytes(Design.SLICES, 100) > len(stored)
    assert len(decode_document(stored_endpoints(20))["subsets"][0]["addresses"]) == 20


def test_hints_make_slices_larger() -> None:
    plain, hinted = RealSizes("json"), RealSizes("json", hints=True)
    assert hinted.object_bytes(Design.SLICES, 100) > plain.object_bytes(Design.SLICES, 100) + 100 * len("forZones")
    assert decode_document(stored_slice(1, hints=True))["endpoints"][0]["hints"] == {"forZones": [{"name": "zone-a"}]}


def test_an_uncut_endpoints_object_is_drawn_out_from_measured_ones() -> None:
    sizes = RealSizes("json")
    step = sizes.object_bytes(Design.ENDPOINTS, 1000) - sizes.object_bytes(Design.ENDPOINTS, 999)
    drawn = sizes.object_bytes(Design.ENDPOINTS, 2000) - sizes.object_bytes(Design.ENDPOINTS, 1000)
    assert drawn == pytest.approx(1000 * step, rel=0.02)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 KB"), (26_423, "26.4 KB"), (999_700, "1 MB"), (2.2e14, "220 TB")],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert human_bytes(count) == text


def test_json_has_every_figure_of_the_table() -> None:
    done = CliRunner().invoke(main, ["estimate", "--pods", "250", "--nodes", "10", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == [as_document(Case(pods=250, nodes=10))]
    slices = as_document(Case(pods=250, nodes=10))["scenarios"]["Service Creation/Deletion"]["EndpointSlice"]
    assert slices["kep"]["writes"] == slices["json"]["writes"] == 3
    assert slices["json"]["totalBytes"] > slices["protobuf"]["totalBytes"] > slices["kep"]["totalBytes"] / 2


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_writes_a_picture(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"bytes.{ending}"
    done = CliRunner().invoke(main, ["estimate", "--pods", "3000", "--nodes", "200", "--plot", str(path)])
    assert done.exit_code == 0, done.output
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--pods", "10"], "--pods and --nodes go together"),
        (["--endpoints-per-slice", "50"], "add --pods and --nodes"),
        (["--pods", "0", "--nodes", "1"], "is not in the range"),
        (["--pods", "10", "--nodes", "1", "--plot", "/nonexistent/x.png"], "cannot draw into /nonexistent/x.png"),
        (["--pods", "10", "--nodes", "1", "--plot", "/tmp/x.doc"], "cannot draw into /tmp/x.doc"),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(main, ["estimate", *arguments])
    assert done.exit_code != 0
    assert text in done.output
