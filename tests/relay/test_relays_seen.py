"""Relays as users see them: processes whose tree ``sliceplane status`` shows to a reader with few
rights, and relays in threads that stop, or share a name.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.ports import free_port
from tests.relay.relaying import RelayServer, kubeconfig, relaying
from tests.relay.test_relay_processes import Member
from tests.server.test_cli_serving import ENVIRONMENT, PROGRAM
from tests.waiting import eventually, until

from sliceplane.client import HttpClient, connect
from sliceplane.consume.io.accounts import request_token
from sliceplane.diagnose.drift import relays as judged
from sliceplane.diagnose.explain.status import Part
from sliceplane.diagnose.explain.status_parts import status as status_of
from sliceplane.diagnose.io.drifting import read_drift
from sliceplane.diagnose.io.status import read_status
from sliceplane.relay import reports, subtree
from sliceplane.testing import Plane

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
RBAC = "rbac.authorization.k8s.io"
LEASES = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["get", "create", "patch"],
}


def rights() -> list[dict[str, Any]]:
    """A relay has the role of its manifest and the one on Leases of docs/relay.md; a reader has
    ``sliceplane-reader``.
    """
    roles = [
        document
        for name in ("relay.yaml", "reader.yaml")
        for document in yaml.safe_load_all((MANIFESTS / name).read_text())
        if document and document["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    ]
    relay = {"kind": "ServiceAccount", "name": "sliceplane-relay", "namespace": "kube-system"}
    on_leases = {"name": "sliceplane-relay", "namespace": "kube-node-lease"}
    return [
        *roles,
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": on_leases, "rules": [LEASES]},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": on_leases,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "sliceplane-relay"},
            "subjects": [relay],
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "sliceplane-reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
        },
    ]


@pytest.fixture
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply(rights())
        yield made


def as_account(plane: Plane, folder: Path, url: str, namespace: str, account: str) -> Path:
    async def ask() -> str:
        async with connect(plane.kubeconfig) as client:
            return await request_token(client, namespace, account, 3600)

    folder.mkdir(exist_ok=True)
    return kubeconfig(folder, url, plane._plane.pki.ca_file, asyncio.run(ask()))


# Processes


def started(plane: Plane, stack: ExitStack, folder: Path, url: str, *flags: str) -> Member:
    """A relay as a process behind *url*."""
    pki, port = plane._plane.pki, free_port()
    below = as_account(plane, folder, url, "kube-system", "sliceplane-relay")
    arguments = (
        *("relay", "--upstream", str(below), "--listen", f"127.0.0.1:{port}"),
        *("--tls-cert-file", str(pki.server_file), *flags),
        *("--tls-private-key-file", str(pki.server_key_file)),
    )
    member = Member(arguments, below, port)
    stack.callback(member.kill)
    member.start()
    return member


def test_a_reader_sees_the_tree_of_processes(plane: Plane, tmp_path: Path) -> None:
    url = plane._plane.url
    with ExitStack() as stack:
        eu = started(plane, stack, tmp_path / "eu", url, "--aggregate-reports", "eu")
        at_eu = f"https://127.0.0.1:{eu.port}"
        zone = ("--zone", "zone-a", "--aggregate-reports", "eu-1")
        started(plane, stack, tmp_path / "eu-1", at_eu, *zone)
        started(plane, stack, tmp_path / "silent", at_eu)
        reader = as_account(plane, tmp_path / "reader", url, "default", "reader")

        def look(*flags: str) -> str:
            command = [*PROGRAM, "status", "--kubeconfig", str(reader), *flags]
            environment = {**ENVIRONMENT, "COLUMNS": "80"}
            return subprocess.run(
                command, capture_output=True, text=True, env=environment, check=False
            ).stdout

        def rows() -> list[dict[str, Any]]:
            parts = json.loads(look("-o", "json"))["parts"]
            found = next(part for part in parts if part["name"] == "relays")
            return found["figures"]["relays"]  # type: ignore[no-any-return]

        found = until(
            rows,
            lambda seen: [row["state"] for row in seen] == ["ready", "ready"],
            ignoring=(json.JSONDecodeError,),
        )
        assert [(row["name"], row["parent"], row["level"], row["zone"]) for row in found] == [
            ("eu", url, 1, ""),
            ("eu-1", "eu", 2, "zone-a"),
        ], "a relay without --aggregate-reports reports nothing"
        found = until(rows, lambda seen: seen[0]["watches"] > 0)
        assert found[0]["silence"].keys() == {"endpointslices", "services", "nodes"}
        lines = [line for line in look().splitlines() if line.split()[:1] in (["eu"], ["eu-1"])]
        assert [line.split()[:2] for line in lines] == [["eu", "-"], ["eu-1", "zone-a"]]
        assert lines[1].index("eu-1") == lines[0].index("eu") + 2
        _, lease = lease_of(plane, "eu")
        text = json.dumps(lease["metadata"]["annotations"])
        assert str(free_port()) not in text
        assert "Bearer" not in text
        assert "token" not in text


def lease_of(plane: Plane, name: str) -> tuple[str, Any]:
    lease = next(
        item
        for item in plane.list("leases", namespace="kube-node-lease")
        if item["metadata"]["name"] == f"sliceplane-relay-{name}"
    )
    return lease["metadata"]["annotations"]["sliceplane.dev/relays"], lease


# In threads, quicker than in life


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (reports, "CHANGED_PERIOD_S", 0.5),
        (reports, "BEHIND_PERIOD_S", 0.2),
        (reports, "IDLE_PERIOD_S", 1.0),
        (subtree, "REPORT_LATE_S", 8.0),
        (judged, "REPORT_LATE_S", 8.0),
        (judged, "HAND_OVER_S", 4.0),
    ):
        monkeypatch.setattr(module, name, seconds)


@asynccontextmanager
async def looking(plane: Plane) -> AsyncIterator[Any]:
    """Yields a function that returns the part of relays."""
    async with connect(plane.kubeconfig) as client:

        async def look() -> Part:
            facts = await read_status(client, "", time.time)
            return next(part for part in status_of(facts).parts if part.name == "relays")

        look.client = client  # type: ignore[attr-defined]
        yield look


def states(part: Part) -> dict[str, str]:
    return {row["name"]: row["state"] for row in part.figures["relays"]}


@pytest.mark.usefixtures("hasty")
async def test_a_relay_that_stops_is_told_and_what_is_below_it_is_unknown(
    plane: Plane, tmp_path: Path
) -> None:
    parent: Any = SimpleNamespace(plane=plane._plane)
    async with looking(plane) as look:
        with ExitStack() as stack:
            ends: dict[str, ExitStack] = {}
            for name in ("eu", "eu-1", "eu-1-a"):
                ends[name] = stack.enter_context(ExitStack())
                relay: RelayServer = await asyncio.to_thread(
                    ends[name].enter_context, relaying(parent, reports_name=name)
                )
                below = await asyncio.to_thread(
                    as_account,
                    plane,
                    tmp_path / name,
                    relay.relay.url,
                    "kube-system",
                    "sliceplane-relay",
                )
                pki = plane._plane.pki
                parent = SimpleNamespace(plane=SimpleNamespace(pki=pki, kubeconfig=below))
            both = {"eu": "ready", "eu-1": "ready", "eu-1-a": "ready"}
            await eventually(look, lambda part: states(part) == both)
            await asyncio.to_thread(ends["eu-1"].close)
            gone = {"eu": "ready", "eu-1": "stopped", "eu-1-a": "unknown"}
            part = await eventually(look, lambda part: states(part) == gone)
            assert part.state == "attention"
            assert "1 of 3 relays ready" in part.lines[0]
            assert part.lines[0].endswith("; not eu-1 (stopped), eu-1-a (unknown)")
            assert await drift_codes(look.client) == ["N16"]
        await eventually(look, lambda part: states(part)["eu"] == "stopped")
        assert await drift_codes(look.client) == ["N16"], "of all below it nothing is known"


async def drift_codes(client: HttpClient) -> list[str]:
    drift = await read_drift(client, time.time, port=1)
    return [finding.code for finding in drift.findings]


@pytest.mark.usefixtures("hasty")
async def test_two_relays_of_one_name_are_told_until_one_is_gone(plane: Plane) -> None:
    parent: Any = SimpleNamespace(plane=plane._plane)
    async with looking(plane) as look:
        with ExitStack() as stack:
            second = ExitStack()
            await asyncio.to_thread(stack.enter_context, relaying(parent, reports_name="eu"))
            await eventually(look, lambda part: states(part) == {"eu": "ready"})
            await asyncio.to_thread(second.enter_context, relaying(parent, reports_name="eu"))
            try:
                part = await eventually(look, lambda part: part.state == "attention")
                assert part.lines[0].endswith("; not eu (shared)")
                (row,) = part.figures["relays"]
                assert len(set(row["processes"])) == 2
                drift = await read_drift(look.client, time.time, port=1)
                (finding,) = drift.findings
                assert (finding.code, finding.severity) == ("N18", "warning")
                assert row["processes"][0] in finding.sentence
            finally:
                await asyncio.to_thread(second.close)
            # The other one is remembered for 90 s, and does not come back.
            text, _ = lease_of(plane, "eu")
            assert len(json.loads(text)) <= 2
