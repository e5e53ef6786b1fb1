"""``simulate --scale --relays``: relays tell every node everything, also when one is killed; what is
counted is what is run; the same seed is the same run under every hash seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease
from sliceplane.api.scheme import Leases
from sliceplane.cli.main import main
from sliceplane.consume.drain.relayed import nodes_of
from sliceplane.lab.sim.scale import front, relays
from sliceplane.lab.sim.scale.plan import ScalePlan
from sliceplane.lab.sim.scale.run import ScaleRun, _shares
from sliceplane.lab.sim.scale.text import as_text
from sliceplane.relay.io import parent as production

ROOT = Path(__file__).parents[3]
SMALL = ScalePlan(
    nodes=12,
    pods=48,
    services=6,
    rolling=2,
    ready_s=1.0,
    termination_s=2.0,
    node_grace_s=2.0,
    renewals_per_s=1.0,
    sampled=1,
    relays=4,
)
LEVELS = replace(SMALL, nodes=24, relays=8, levels=2)


def test_all_nodes_are_told_by_relays_and_the_server_writes_to_its_own_children() -> None:
    made = ScaleRun(LEVELS)
    outcome = made.run()
    assert not outcome.wrong
    assert not outcome.broken
    upper, leaves = made._tree.levels if made._tree else ([], [])
    assert len(upper) == 3
    assert sum(leaf.copies for leaf in leaves) == 8
    assert len(leaves) < 8, "equal ones share what they are"
    for part in outcome.parts[1:]:
        told = len(part.ages.everywhere)
        assert told == len(part.ages.reported) == len(part.ages.committed) > 0
        assert sorted(part.ages.relays) == [1, 2]
        assert part.leaves.events > 15 * part.slice_writes
        # Bookmarks come on top; a relay that lists after its kill gets fewer events.
        assert 2 * part.slice_writes < part.roots.events < 4 * part.slice_writes
        assert part.leaves.lists == part.roots.lost_watches == part.relays.lost_watches == 0
    text = as_text(outcome, 100)
    assert "slice stored, at level 2: p99" in text
    assert "1 server, 3 + 8 relays" in text


def test_each_relay_that_is_killed_lists_once_and_its_nodes_do_not() -> None:
    """One of each level: the upper one lists at the server, the other one at its parent."""
    begun, rolled, killed, lost = ScaleRun(LEVELS).run().parts
    assert [part.roots.lists for part in (begun, rolled, killed, lost)] == [0, 0, 1, 0]
    assert [part.relays.lists for part in (begun, rolled, killed, lost)] == [0, 0, 1, 0]
    assert killed.back_s is not None
    assert 0.8 <= killed.back_s < 5
    assert rolled.back_s is None
    assert max(killed.ages.everywhere) > max(rolled.ages.everywhere)


def test_nodes_that_come_back_to_a_relay_without_memory_get_what_they_missed() -> None:
    """There is no sibling, so the relay fetches the events from its parent for all of them."""
    outcome = ScaleRun(replace(SMALL, relays=1)).run()
    assert not outcome.wrong
    assert not outcome.broken
    killed = outcome.parts[2]
    assert killed.relays.catch_ups > 0
    assert killed.leaves.lists == killed.relays.lost_watches == 0
    assert killed.roots.lists == 1
    assert len(killed.ages.everywhere) == len(killed.ages.committed)


def test_a_stream_with_a_gap_a_duplicate_or_other_bytes_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = front._portions
    spoil = {
        "gap": lambda items: items[1:],
        "duplicate": lambda items: (*items, items[-1]),
        "bytes": lambda items: (items[0]._replace(data=b"{}"), *items[1:]),
    }
    for change in spoil.values():
        made = ScaleRun(SMALL)
        made._begin()
        made._scheduler.run_until(made._scheduler.now + 5.0)
        made._join()
        left = [1]

        def portions(unsent: object, change=change, left=left) -> object:  # type: ignore[no-untyped-def]
            items, writes, size = whole(unsent)  # type: ignore[arg-type]
            if items and items[0].type != "BOOKMARK" and left:
                left.clear()
                items = change(items)
            return items, writes, size

        monkeypatch.setattr(front, "_portions", portions)
        made.scenario.roll_out()
        made._scheduler.run_until(made._scheduler.now + 10.0)
        assert made._server.wrong, change


def test_relays_report_their_nodes_and_never_too_much() -> None:
    made = ScaleRun(SMALL)
    made.run()
    assert made._tree is not None
    leases = [
        each.lease.metadata.name
        for record in made._server.records(Leases)
        for each in nodes_of(decode(record.body, Lease))
    ]
    assert len(set(leases)) == SMALL.nodes
    assert made._tree.wrong(made._rows) == []
    for row in made._rows:
        row.version = 1
    assert len(made._tree.wrong(made._rows)) >= SMALL.nodes


def test_equal_relays_have_equal_numbers_of_nodes() -> None:
    made = ScaleRun(LEVELS)
    made._join()
    for nodes in (0, 5, 100, 1003):
        shares = _shares(nodes, made._leaves)
        assert (
            sum(share * leaf.copies for share, leaf in zip(shares, made._leaves, strict=True))
            == nodes
        )
        assert max(shares) - min(shares) <= 8


def test_fetches_have_the_times_of_the_production_relay() -> None:
    played = (relays.PROGRESS_WATCH_S, relays.FETCH_S_MAX, relays.FETCH_PAUSE_S)
    real = (production.PROGRESS_WATCH_S, production.FETCH_S_MAX, production.FETCH_PAUSE_S)
    assert played == real


SIZES = (
    *("--nodes", "24", "--pods", "48", "--services", "6", "--rolling", "1"),
    *("--relays", "4", "--levels", "2", "--sampled", "1"),
)


def test_the_same_seed_is_the_same_report_under_any_hash_seed() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "sliceplane", "simulate", "--scale", *SIZES],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")},
        )
        for seed in ("1", "4242")
    ]
    reports = [process.communicate()[0].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    first, second = (_without_real(report) for report in reports)
    assert "trace" in first[-1]
    assert first == second


def _without_real(report: str) -> list[str]:
    """Returns its lines without memory and seconds of this machine."""
    lines = report.splitlines()
    *tale, end = [line for line in lines if " MiB  " not in line]
    return [*tale, end.split(" in ")[0] + end.rpartition(";")[2]]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--levels", "2"], "2 levels need 4 relays or more (--relays)"),
        (["--levels", "3", "--relays", "7"], "3 levels need 8 relays or more (--relays)"),
        (["--relays", "61"], "61 relays are more than the 60 nodes"),
    ],
)
def test_relays_that_cannot_be_are_refused(flags: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main, ["simulate", "--scale", *flags])
    assert done.exit_code == 64
    assert complaint in done.output
