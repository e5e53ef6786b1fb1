"""Every benchmark imports, its smallest size runs and prints rows of the documented shape; a missed
budget is told.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import benchmarks
from benchmarks.__main__ import main as run_all
from benchmarks.harness import ROWS_FILE, Result, finish, percentile
from benchmarks.tools.process import child_environment
from tests.template_process import FRESH

COLUMNS = {"name", "size", "value", "unit", "peer", "peer_value", "ratio", "budget", "met"}
NEEDS_KERNEL = {"demand", "first_packet", "node_proxy", "ready_to_packet", "xds_calls"}
#: they move to a network of their own, in which the template of processes is not
OWN_NETWORK = {"xds_calls"}
#: they wait for a server that is away, and compute little
SLOW = {"name_server_outage"}
ROOT = Path(__file__).parents[2]


def test_every_budget_of_the_design_has_its_benchmark() -> None:
    wanted = {
        "reconcile",
        "fanout",
        "kep0752_case1",
        "end_to_end",
        "node_proxy",
        "ready_to_packet",
        "first_packet",
        "storage",
        "startup",
        "rolling_update",
    }
    assert wanted <= set(benchmarks())


@pytest.mark.parametrize("name", benchmarks())
def test_module_imports_without_running(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.kernel] * (name in NEEDS_KERNEL)
            + [pytest.mark.slow] * (name in SLOW),
        )
        for name in benchmarks()
    ],
)
def test_smallest_size_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS_KERNEL and os.geteuid() != 0:
        pytest.skip("needs root")
    if name in OWN_NETWORK:
        monkeypatch.setenv(FRESH, "1")
    results = importlib.import_module(f"benchmarks.{name}").run(small=True)
    assert results
    for result in results:
        assert result.value >= 0, result


def test_a_benchmark_is_a_program() -> None:
    command = [sys.executable, "-m", "benchmarks.selectors", "--small", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=child_environment()
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert set(json.loads(line)) == COLUMNS


def test_a_budget_is_an_upper_bound_and_the_ratio_is_ours_to_theirs() -> None:
    row = Result(
        name="n", size="s", value=2.0, unit="ms", budget=2.0, peer="p", peer_value=8.0
    ).row()
    assert (row["met"], row["ratio"]) == (True, 0.25)
    assert Result(name="n", size="s", value=2.1, unit="ms", budget=2.0).met is False


def test_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 99), percentile(values, 50), percentile([7.0], 99)) == (
        99.0,
        50.0,
        7.0,
    )


def result(value: float) -> Result:
    return Result(name="one write", size="20,000 endpoints", value=value, unit="ms", budget=2.0)


@pytest.mark.parametrize(("value", "exit_code"), [(1.9, 0), (2.1, 1)])
def test_a_benchmark_ends_with_1_when_a_budget_is_missed(
    value: float, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        finish([result(value)], as_json=False)
    heads, row = capsys.readouterr().out.splitlines()
    assert end.value.code == exit_code
    assert heads.split()[:3] == ["name", "size", "value"]
    assert row.split()[-4:] == ["NO" if exit_code else "yes", "-", "-", "-"]


@pytest.mark.parametrize(
    ("value", "killed", "told"),
    [
        (1.9, False, "every budget is met"),
        (2.1, False, "missed: storage: one write (20,000 endpoints): 2.1 ms, budget 2"),
        (2.1, True, "failed: storage: exit code -9"),
    ],
)
def test_all_benchmarks_end_with_what_was_missed(
    value: float,
    killed: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def benchmark(
        command: list[str], *, env: dict[str, str], check: bool
    ) -> subprocess.CompletedProcess[str]:
        assert command[-1] == "benchmarks.storage"
        assert not check
        if killed:
            return subprocess.CompletedProcess(command, -9)
        monkeypatch.setenv(ROWS_FILE, env[ROWS_FILE])
        with pytest.raises(SystemExit) as end:
            finish([result(value)], as_json=False)
        return subprocess.CompletedProcess(command, int(end.value.code or 0))

    monkeypatch.setattr(subprocess, "run", benchmark)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "storage"])
    with pytest.raises(SystemExit) as end:
        run_all()
    assert capsys.readouterr().out.splitlines()[-1] == told
    assert bool(end.value.code) is (value > 2.0)
