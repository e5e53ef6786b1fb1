"""Relays as processes in front of a server as a process: kubectl and an informer through one and two
levels, and ``kill -9`` of each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.relay.relaying import ADMIN, kubeconfig
from tests.server.serving import endpoint_slice
from tests.server.test_cli_serving import ENVIRONMENT, PROGRAM
from tests.server.test_http_access import KUBECTL
from tests.waiting import eventually, until

from sliceplane.api import codec
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file
from sliceplane.watch.io.reflect import RunningInformer, loop_clock


@dataclass
class Member:
    """A process that is killed and started again at the same port."""

    arguments: tuple[str, ...]
    kubeconfig: Path
    port: int
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *self.arguments], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass
class Tree:
    """A server, a relay, and a relay behind it."""

    root: Member
    first: Member
    second: Member

    def kubectl(self, member: Member, *arguments: str, stdin: str = "") -> str:
        assert KUBECTL is not None
        done = subprocess.run(
            [KUBECTL, "--kubeconfig", str(member.kubeconfig), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def put(self, name: str, **labels: str) -> None:
        document = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            **endpoint_slice(name),
        }
        document["metadata"]["labels"] = labels
        self.kubectl(self.root, "apply", "-f", "-", stdin=json.dumps(document))


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(f'{ADMIN},admin,1,"system:masters"\n')
    data = tmp_path / "data"
    ports = [free_port() for _ in range(3)]
    authority = data / "pki" / "ca.crt"
    members = []
    for number, port in enumerate(ports):
        config = kubeconfig(tmp_path, f"https://127.0.0.1:{port}", authority, ADMIN)
        if number == 0:
            of_root = ("apiserver", "--data-dir", str(data), "--secure-port", str(port))
            arguments = (*of_root, "--token-auth-file", str(tokens))
        else:
            arguments = (
                *("relay", "--upstream", str(members[-1].kubeconfig)),
                *("--listen", f"127.0.0.1:{port}", "--client-ca-file", str(authority)),
                *("--tls-cert-file", str(data / "pki" / "apiserver.crt")),
                *("--tls-private-key-file", str(data / "pki" / "apiserver.key")),
            )
        members.append(Member(arguments, config, port))
    try:
        for member in members:
            member.start()
        yield Tree(*members)
    finally:
        for member in reversed(members):
            member.kill()


@contextlib.contextmanager
def following(tree: Tree, member: Member) -> Iterator[subprocess.Popen[str]]:
    assert KUBECTL is not None
    process = subprocess.Popen(
        [
            KUBECTL,
            "--kubeconfig",
            str(member.kubeconfig),
            "get",
            "endpointslices",
            "-w",
            "-o",
            "name",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_kubectl_through_two_levels(tree: Tree) -> None:
    tree.put("one")
    for member in (tree.first, tree.second):
        assert "endpointslice.discovery.k8s.io/one" in tree.kubectl(
            member, "get", "endpointslices", "-o", "name"
        )
        assert "IPv4" in tree.kubectl(member, "get", "endpointslice", "one")
        assert "one" in tree.kubectl(member, "describe", "endpointslice", "one")
    with following(tree, tree.first) as near, following(tree, tree.second) as far:
        for process in (near, far):
            listed = {line_of(process) for _ in range(1 + tree_has_kubernetes(tree))}
            assert "endpointslice.discovery.k8s.io/one" in listed
        tree.put("two")
        assert line_of(near) == line_of(far) == "endpointslice.discovery.k8s.io/two"
    made = tree.kubectl(tree.second, "create", "configmap", "written", "--from-literal=a=b")
    assert made == "configmap/written created\n"
    assert "written" in tree.kubectl(tree.root, "get", "configmaps")


def tree_has_kubernetes(tree: Tree) -> int:
    return tree.kubectl(tree.root, "get", "endpointslices", "-o", "name").count("kubernetes")


class Followed:
    """An informer, and what it was told."""

    def __init__(self, client: HttpClient) -> None:
        self.events: list[tuple[str, str]] = []
        self.informer: RunningInformer[Any] = RunningInformer(
            client, Selection(EndpointSlices, "default"), clock=loop_clock(0.0), rng=Rng(1)
        )
        self.informer.add_handler(self.note, lambda: None)

    def note(self, changes: Any) -> None:
        for change in changes:
            kind = "+" if change.old is None else "-" if change.new is None else "="
            self.events.append((kind, change.object.metadata.name))

    def names(self) -> set[str]:
        return {cached.metadata.name for cached in self.informer.cache}


@contextlib.asynccontextmanager
async def informers(*members: Member) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        followed = []
        tasks = []
        for member in members:
            client = await stack.enter_async_context(HttpClient(from_file(member.kubeconfig)))
            followed.append(Followed(client))
            tasks.append(asyncio.create_task(followed[-1].informer.run()))
        try:
            yield followed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("victim", ["root", "first", "second"])
async def test_informers_lose_nothing_when_one_is_killed(tree: Tree, victim: str) -> None:
    await asyncio.to_thread(tree.put, "kept")
    await asyncio.to_thread(tree.put, "removed")
    killed: Member = getattr(tree, victim)
    async with informers(tree.first, tree.second) as followed:
        for each in followed:
            await eventually(lambda each=each: {"kept", "removed"} <= each.names())
        if victim != "root":
            killed.kill()
        await asyncio.to_thread(tree.put, "made", colour="red")
        await asyncio.to_thread(tree.kubectl, tree.root, "delete", "endpointslice", "removed")
        await asyncio.to_thread(tree.put, "kept", colour="red")
        if victim == "root":
            killed.kill()
        await asyncio.to_thread(killed.start)
        await asyncio.to_thread(tree.put, "last")
        for each in followed:
            await eventually(
                lambda each=each: "last" in each.names() and "removed" not in each.names()
            )
            assert {"kept", "made", "last"} <= each.names()
            counted = [event for event in each.events if event[1] != "kubernetes"]
            assert counted.count(("-", "removed")) == 1
            assert counted.count(("+", "made")) == 1
            assert counted.count(("+", "kept")) == 1


def test_a_relay_without_its_parent_serves_what_it_has(tree: Tree) -> None:
    tree.put("one")
    until(lambda: "one" in tree.kubectl(tree.first, "get", "endpointslices", "-o", "name"))
    tree.root.kill()
    raw = ("get", "--raw")
    path = "/apis/discovery.k8s.io/v1/endpointslices?resourceVersion=0"
    listed = codec.decode_document(tree.kubectl(tree.first, *raw, path).encode())
    assert "one" in {item["metadata"]["name"] for item in listed["items"]}
    with pytest.raises(AssertionError, match="connection refused"):
        tree.kubectl(tree.first, "get", "endpointslices")
