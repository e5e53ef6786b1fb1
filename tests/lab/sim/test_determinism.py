"""Same input, same bytes: a whole rollout gives the same trace under every PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab.sim.trace_of_a_rollout import run

from sliceplane.api.scheme import EndpointSlices, Namespaces, Pods

ROOT = Path(__file__).parents[3]


def trace(hash_seed: str) -> str:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    script = str(Path(__file__).with_name("trace_of_a_rollout.py"))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_trace_is_the_same_under_any_hash_seed() -> None:
    first, second = trace("1"), trace("4242")
    assert first.count("\n") > 500
    assert first == second


def test_the_story_ends_as_it_must() -> None:
    cluster = run()
    names = {item["metadata"]["name"] for item in cluster.list(Namespaces)}
    assert "team" not in names, "an emptied namespace is finalised"
    assert cluster.list(Pods, "team") == []
    slices = cluster.list(EndpointSlices)
    by_service = {item["metadata"]["labels"].get("kubernetes.io/service-name") for item in slices}
    assert by_service == {"web"}, "the slices of a deleted Service are collected"
    addresses = [
        e["addresses"][0]
        for item in slices
        for e in item["endpoints"]
        if item["addressType"] == "IPv4"
    ]
    assert len(addresses) == len(set(addresses)) == 9
    before = cluster.store.revision
    cluster.converge(limit_s=3600)
    assert cluster.store.revision == before, "at rest nothing is written"
