"""``sliceplane what-if`` as it is typed: its text, its document, its pictures, its errors."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from tests.lab.whatif.asked import ask, cart, cart_snapshot, state_of

from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.cli import progress
from sliceplane.cli.lab.what_if import read_cluster
from sliceplane.cli.lab.what_if_plot import write_plot
from sliceplane.cli.main import main
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.lab.whatif.prediction import Prediction
from sliceplane.lab.whatif.state import READ, WhatIfError, of_lists, of_snapshot
from sliceplane.lab.whatif.verify import check_beginning
from sliceplane.server.store.snapshot import records_of
from sliceplane.watch.cache import Change
from sliceplane.watch.recorder.entries import LoopBegan

SAME_ZONE = ("--set", "traffic-distribution=PreferSameZone")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return cart(11, a=2, b=2, c=2)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("what-if") / "cart.snapshot"
    path.write_bytes(cart_snapshot())
    return path


def run(snapshot: Path, *arguments: str, service: str = "cart") -> Result:
    line = ["what-if", service, "--snapshot", str(snapshot), *arguments]
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, line)


def test_the_text_fits_eighty_columns_and_begins_with_what_is_assumed(snapshot: Path) -> None:
    done = run(snapshot, *SAME_ZONE)
    assert done.exit_code == 1, "an endpoint is overloaded that was not"
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "What if: traffic-distribution=PreferSameZone"
    assert lines.index("Assumed") < lines.index("slices                1        1        .")
    text = " ".join(done.output.split())
    for said in (
        "leaves its zone 66.7% 0.0% -66.7 points",
        "gets 1.22 x an even share, more than 1.2 times. 1 Pod more would mend it",
        "It holds for kube-proxy and Sliceplane's node proxy and Python client.",
        "measured GB x share that leaves its zone x 0.02 $ a GB that crosses (AWS, 2026-11)",
    ):
        assert said in text, done.output
    assert "$ now" not in text, "no sum without measured bytes"


def test_measured_bytes_make_a_cost(snapshot: Path) -> None:
    done = run(snapshot, *SAME_ZONE, "--gigabytes", "3000", "--price", "0.01@2026-10")
    text = " ".join(done.output.split())
    assert (
        "Cost of 3,000 GB, requests and answers, at 0.01 $ a GB that crosses (2026-10): 20.00 $ "
        "now, 0.00 $ then" in text
    )


def test_connections_and_further_watchers_count(snapshot: Path) -> None:
    few, many = (
        json.loads(
            run(
                snapshot, *SAME_ZONE, "--connections", number, "--watchers", number, "-o", "json"
            ).output
        )
        for number in ("10", "1000")
    )
    assert [document["chance"]["connections"] for document in (few, many)] == [10, 1000]
    assert many["before"]["watchers"] - few["before"]["watchers"] == 990
    assert many["written"]["bytes"]["json"] > few["written"]["bytes"]["json"]


def test_the_document_is_stable(snapshot: Path) -> None:
    first, second = (run(snapshot, *SAME_ZONE, "-o", "json").output for _ in range(2))
    assert first == second
    document = json.loads(first)
    assert list(document) == [
        "service",
        "changes",
        "origin",
        "assumptions",
        "before",
        "after",
        "written",
        "writtenOfAllServices",
        "ranges",
        "pending",
        "ifClientsStay",
        "moments",
        "controllerTells",
        "chance",
        "overloadThreshold",
        "capacity",
        "cost",
        "happened",
    ]
    assert document["after"]["inside"]["leaving"] == 0
    assert document["written"]["bytes"]["json"] > document["written"]["bytes"]["protobuf"] > 0
    assert document["cost"]["before"] is None


def test_no_worse_is_exit_code_zero(snapshot: Path) -> None:
    assert run(snapshot, "--set", "replicas=12").exit_code == 0


def test_lists_of_a_cluster_are_the_same_state_as_its_snapshot(cluster: Cluster) -> None:
    lists = {resource: [record.body for record in cluster.records(resource)] for resource in READ}
    state = of_lists(lists, cluster.store.revision, "as it is")
    assert [(record.key, record.body) for record in state.records] == [
        (record.key, record.body)
        for record in sorted(records_of(cluster.store), key=lambda record: record.revision)
        if record.key.resource in {resource.storage_key for resource in READ}
    ]
    change = "rollout=yes"
    assert ask(state, change).written == ask(cluster, change).written


def test_a_picture_is_the_same_each_time(snapshot: Path, tmp_path: Path) -> None:
    question = predicted(snapshot, "zone-lost=zone-b")
    paths = [tmp_path / f"{number}.svg" for number in (1, 2)]
    for path in paths:
        write_plot(question, path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first[:5] == b"<?xml"
    assert len(first) > 10_000


def predicted(snapshot: Path, change: str) -> Prediction:
    with snapshot.open("rb") as lines:
        return ask(of_snapshot(lines, "test"), change)


def test_a_plot_is_named_on_stderr(snapshot: Path, tmp_path: Path) -> None:
    path = tmp_path / "cart.png"
    done = run(snapshot, "--set", "topology-mode=Auto", "--plot", str(path))
    assert f"picture: {path}" in done.stderr
    assert path.read_bytes()[:5] == b"\x89PNG\r"
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("--set", "zone-lots=zone-a"),
            64,
            "'zone-lots' is nothing that can be set; is zone-lost meant?",
        ),
        (("--set", "replicas"), 64, "replicas: say which value: replicas=12"),
        (("--now", "replicas=3"), 64, "'replicas' is nothing that can be set"),
        (("--set", "replicas=-1"), 2, "-1 is not between 0 and 50,000"),
        (("--clients", "app=cart", "--traffic", "zone-a=1"), 64, "leave one out"),
        (("--clients", "app in cart"), 64, "--clients"),
        (("--traffic", "zone-a"), 64, "'zone-a' is not ZONE=SHARE"),
        (("--traffic", "zone-a=much"), 64, "'much' is no amount"),
        (("--traffic", "zone-a=0"), 64, "no zone has a share"),
        (("--traffic", "@/nonexistent"), 64, "cannot read /nonexistent: no such file"),
        (("--capacity", "300"), 64, "--capacity is compared with what Pods get: add --rate"),
        (("--rate", "0"), 64, "0 requests a second say nothing"),
        (("--price", "0.01"), 64, "say of when the price is"),
        (
            ("--verify", "/nonexistent.recording"),
            2,
            "/nonexistent.recording: No such file or directory",
        ),
        (("--gigabytes", "-4"), 64, "'-4' is no amount"),
        (("--plot", "/nonexistent/x.png"), 1, "cannot draw into /nonexistent/x.png"),
    ],
)
def test_errors_say_what_to_do(
    snapshot: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = run(snapshot, *arguments)
    assert (done.exit_code, sentence in " ".join(done.output.split())) == (code, True), done.output


def test_a_service_that_is_not_there_is_told_with_the_nearest(snapshot: Path) -> None:
    done = run(snapshot, service="default/kart")
    assert done.exit_code == 2
    assert "there is no Service default/kart; is default/cart meant?" in done.output


def test_a_snapshot_of_another_version_or_half_of_one_is_no_answer(
    snapshot: Path, tmp_path: Path
) -> None:
    lines = snapshot.read_bytes().splitlines(keepends=True)
    newer = tmp_path / "newer"
    newer.write_bytes(b"".join([lines[0].replace(b'"version":1', b'"version":9'), *lines[1:]]))
    half = tmp_path / "half"
    half.write_bytes(b"".join(lines[:20]))
    other = tmp_path / "other"
    other.write_text("kind: List\n")
    for path, sentence in (
        (newer, "written by a newer Sliceplane (version 9, we know up to 1)"),
        (half, "it is cut off after 19 of"),
        (other, "this is no snapshot of Sliceplane"),
        (tmp_path / "none", "cannot read"),
    ):
        done = run(path)
        assert done.exit_code == 2
        assert sentence in done.output


class Refusing:
    """A server that lets one list everything but Nodes."""

    async def list(self, selection: Selection, **_: Any) -> Any:
        if selection.resource is Nodes:
            raise StatusError(403, "Forbidden", "nodes is forbidden")
        return type("Page", (), {"items": [encode({"metadata": {}})] * 0, "continue_token": ""})()


def test_a_missing_right_is_named_with_a_way_on() -> None:
    with pytest.raises(WhatIfError) as caught:
        asyncio.run(read_cluster(cast("Any", Refusing()), "default"))
    assert "the right to list nodes is missing" in str(caught.value)
    assert "--snapshot" in str(caught.value)
    assert Services.plural in str(caught.value)


def test_verifying_needs_a_snapshot_of_before() -> None:
    done = CliRunner().invoke(main, ["what-if", "cart", "--verify", "incident.recording"])
    assert done.exit_code == 64
    assert "--verify compares with a snapshot of before: add --snapshot FILE" in " ".join(
        done.output.split()
    )


def test_a_recording_that_begins_too_late_is_no_answer(cluster: Cluster) -> None:
    (slice_now,) = cluster.records(EndpointSlices)
    later = decode(slice_now.body, EndpointSlice)
    entry = LoopBegan(
        at=0.0, name="any", checkpoint=True, objects=(Change(EndpointSlices.key, None, later),)
    )
    state = replace(state_of(cluster), revision=slice_now.revision - 1)
    with pytest.raises(WhatIfError, match="begins after the snapshot"):
        check_beginning(entry, state, "default", "cart")
    check_beginning(entry, state_of(cluster), "default", "cart")


def test_rate_and_capacity_say_what_a_pod_gets(snapshot: Path, tmp_path: Path) -> None:
    measured = tmp_path / "traffic"
    measured.write_text('requests{client_zone="zone-a"} 2\nrequests{client_zone="zone-b"} 1\n')
    done = run(
        snapshot,
        "--rate",
        "3000",
        "--capacity",
        "300",
        "--traffic",
        f"@{measured}",
        "--set",
        "zone-lost=zone-b",
    )
    assert done.exit_code == 1, "those that are left cannot carry all"
    assert max(map(len, done.output.splitlines())) <= 80
    text = " ".join(done.output.split())
    for said in (
        "Clients are as --traffic says: zone-a 66.7%, zone-b 33.3%.",
        "They send 3,000 requests a second, and a Pod can take 300 requests a second",
        "requests a second 3,000 2,000",
        "No overload: each endpoint gets 286 requests a second, 95% of what it can take.",
        (
            "Overload: each endpoint gets 429 requests a second, 143% of what it can take. 3 Pods "
            "more would mend it"
        ),
        "at once 11 36.4%",
        "5m50s 11 0.0%",
    ):
        assert said in text, done.output


def test_what_is_done_is_told_on_a_terminal_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "FIRST_S", 3600.0)
    with progress.ProgressLine() as tell:
        tell("nothing takes so long")
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "FIRST_S", -1.0)
    with progress.ProgressLine() as tell:
        tell("12 writes")
    assert terminal.getvalue().startswith("\r0 s: 12 writes\r")
    assert terminal.getvalue().endswith("\r")


def test_a_log_is_told_nothing_meanwhile(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", -1.0)
    assert run(snapshot, *SAME_ZONE).stderr == ""
