"""The agent as a program, against a live plane: a child, its checks, its socket, its end, its
rights.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.agent.agent_file import AgentFile, ServiceEntry, read_agent_file
from sliceplane.agent.io import control
from sliceplane.agent.io import machine as machine_module
from sliceplane.agent.io.granting import Grant, apply_grant, serves_policies
from sliceplane.agent.io.listing import ListedAgent, list_agents
from sliceplane.agent.io.machine import MachineError, SleepWatch
from sliceplane.agent.io.probes import run_probe
from sliceplane.agent.io.program import EXIT_REFUSED, AgentOptions
from sliceplane.agent.io.start import get_service, serve
from sliceplane.agent.io.token import granted_name
from sliceplane.agent.tenure import LeaseTerms
from sliceplane.api.requests import Write
from sliceplane.api.scheme import by_kind
from sliceplane.client import connect
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.consume.agents.registration import AgentPort
from sliceplane.testing import Plane
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.kubeconfig import from_file

_WELL = CheckSpec(kind="exec", target="true", period_s=0.2)
_numbers = count(1)
_LONG = 'trap "exit 7" TERM; while :; do sleep 0.05; done'


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        yield made


@pytest.fixture
def service(plane: Plane) -> str:
    name = f"web-{next(_numbers)}"
    spec = {"ports": [{"name": "http", "port": 80}]}
    plane.apply([{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}])
    return name


class Running:
    """An agent in this process: what it says, and how to end it as a signal would."""

    def __init__(self, machine: Machine, wanted: Callable[[], AgentFile], **options: Any) -> None:
        self.said: list[str] = []
        self.stop: Callable[[], object] = lambda: None
        chosen: dict[str, Any] = {
            "command": (),
            "terms": LeaseTerms(),
            "drain_s": 0.2,
            "stop_s": 30.0,
            "create_service": False,
            "dry_run": False,
            "path": None,
            **options,
        }
        connection = from_file(machine.kubeconfig)
        self.task = asyncio.create_task(
            serve(
                connection,
                wanted,
                AgentOptions(**chosen),
                on_stop=self._on_stop,
                notify=lambda _: None,
                print_line=self.said.append,
            )
        )

    def _on_stop(self, stop: Callable[[], object]) -> None:
        self.stop = stop

    async def end(self) -> int:
        self.stop()
        return await self.task


class Machine:
    """Where agents run: folders of its own, one address that nobody has."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self.plane = plane
        self.number = next(_numbers)
        self.name = f"vm-{self.number}"
        self.address = f"192.0.2.{self.number}"
        self.kubeconfig = plane.kubeconfig
        self.folder = folder

    @asynccontextmanager
    async def agent(
        self, service: str, *checks: CheckSpec, **options: Any
    ) -> AsyncIterator[Running]:
        entry = ServiceEntry(service, "default", (AgentPort("", 8080),), checks)
        wanted = AgentFile(self.name, (self.address,), "", "", (entry,))
        running = Running(self, lambda: wanted, **options)
        try:
            yield running
        finally:
            running.stop()
            running.stop()
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)

    def slices(self) -> list[dict[str, Any]]:
        return self.plane.list(
            "EndpointSlice", label_selector=f"agent.sliceplane.dev/name={self.name}"
        )

    def condition(self, name: str) -> bool | None:
        stored = self.slices()
        return stored[0]["endpoints"][0]["conditions"][name] if stored else None

    async def until(self, name: str, value: bool | None) -> None:
        await eventually(
            lambda: asyncio.to_thread(self.condition, name), lambda seen: seen is value
        )


@pytest.fixture
def machine(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return Machine(plane, tmp_path)


async def test_a_child_is_an_endpoint_while_it_lives_and_the_end_drains_it(
    machine: Machine, service: str
) -> None:
    async with machine.agent(
        service, _WELL, CheckSpec(kind="process"), command=("sh", "-c", _LONG)
    ) as running:
        await machine.until("ready", True)
        (stored,) = machine.slices()
        assert stored["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}], (
            "the Service's only port"
        )
        (told,) = (await control.send_request(machine.name, {"verb": "status"}))["registrations"]
        assert (told["service"], told["state"], told["stored"], told["problem"]) == (
            service,
            "passing",
            True,
            "",
        )
        await control.send_request(machine.name, {"verb": "drain"})
        await machine.until("terminating", True)
        await control.send_request(machine.name, {"verb": "undrain"})
        await machine.until("ready", True)
        assert await running.end() == 7, "the child's exit code"
    assert machine.slices() == []
    assert (
        machine.plane.list("Lease", label_selector=f"agent.sliceplane.dev/name={machine.name}")
        == []
    )
    with pytest.raises(control.NoAgent, match="no agent"):
        await control.send_request(machine.name, {"verb": "status"})


async def test_a_child_that_dies_is_withdrawn_and_its_code_passed_on(
    machine: Machine, service: str
) -> None:
    async with machine.agent(
        service, _WELL, CheckSpec(kind="process"), command=("sh", "-c", "exit 9")
    ) as running:
        assert await running.task == 9
    assert machine.slices() == []


async def test_no_child_is_started_that_could_not_be_looked_after(
    machine: Machine, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    began = tmp_path / "began"
    async with machine.agent(service, _WELL, command=("touch", str(began))) as running:
        with pytest.raises(OSError, match="path too long"):
            await running.task
    assert not began.exists()


def test_a_clock_that_is_set_is_no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SleepWatch()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)
    assert not watch.slept()
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime", lambda _: since_boot + 3600.0)
    assert watch.slept()
    assert not watch.slept(), "once for each sleep"


async def test_a_process_that_listens_on_loopback_alone_fails_and_the_look_says_why() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await run_probe(CheckSpec(kind="tcp"), "127.0.0.1", port) == (True, "connected")
    for kind in ("tcp", "http"):
        # another address of this machine
        passed, text = await run_probe(CheckSpec(kind=kind, timeout_s=60.0), "127.0.0.2", port)
        assert not passed
        assert "it listens on a loopback address alone" in text
    server.close()
    await server.wait_closed()
    passed, text = await run_probe(CheckSpec(kind="tcp", timeout_s=60.0), "127.0.0.2", port)
    assert (passed, text) == (False, os.strerror(errno.ECONNREFUSED)), "it listens nowhere"


def test_with_the_server_on_this_machine_auto_is_the_address_that_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = {"127.0.0.1": "127.0.0.1", "192.0.2.1": "192.168.7.9"}

    def source_towards(host: str, _: int) -> ipaddress.IPv4Address:
        if host not in routes:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return ipaddress.IPv4Address(routes[host])

    monkeypatch.setattr(machine_module, "_source_towards", source_towards)
    monkeypatch.setattr(machine_module, "addresses", lambda **_: ("172.17.0.1", "192.168.7.9"))
    assert machine_module.own_addresses("https://127.0.0.1:6443", ("auto",)) == ("192.168.7.9",)
    del routes["192.0.2.1"]
    assert machine_module.own_addresses("https://127.0.0.1:6443", ("auto",)) == ("172.17.0.1",), (
        "there is no other way"
    )


async def test_a_child_can_say_itself_that_it_is_ready(machine: Machine, service: str) -> None:
    says = (
        "import os, socket, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
        "s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET']); time.sleep(600)"
    )
    async with machine.agent(
        service, CheckSpec(kind="notify"), command=(sys.executable, "-S", "-c", says)
    ):
        await machine.until("ready", True)


async def test_a_pass_lasts_as_long_as_was_said(machine: Machine, service: str) -> None:
    async with machine.agent(service, CheckSpec(kind="ttl", period_s=600.0)):
        await machine.until("ready", False)
        await control.send_request(machine.name, {"verb": "pass"})
        await machine.until("ready", True)
        await control.send_request(machine.name, {"verb": "fail", "text": "disk full"})
        await machine.until("ready", False)


async def test_one_name_has_one_process_on_a_machine_and_one_host(
    machine: Machine, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.agent(service, _WELL, terms=LeaseTerms(lease_s=3.0)):
        await machine.until("ready", True)
        async with machine.agent(service, _WELL) as second:
            with pytest.raises(MachineError, match="runs on this machine already"):
                await second.task
        host = tmp_path / "other" / "sliceplane-agent" / "host-id"
        host.parent.mkdir(parents=True)
        host.write_text("elsewhere\n")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
        async with machine.agent(service, _WELL) as second:
            assert await second.task == EXIT_REFUSED
            assert "another host has the name" in second.said[-1]
        assert machine.condition("ready") is True
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


async def test_an_agent_of_one_service_has_the_name_of_the_service_and_of_its_host(
    machine: Machine, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.name = ""
    for host in ("laptop.example", "desk"):
        machine.address = (
            f"192.0.2.{next(_numbers)}"  # one that left in a hurry keeps its own for a while
        )
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        async with machine.agent(service, _WELL) as running:
            own = f"{service}-{host.partition('.')[0]}"
            await eventually(
                lambda: running.said, lambda said, line=f"default/{service}: passing": line in said
            )
            assert await control.only_agent() == own
            (stored,) = machine.plane.list(
                "EndpointSlice", label_selector=f"agent.sliceplane.dev/name={own}"
            )
            assert stored["metadata"]["labels"]["kubernetes.io/service-name"] == service
            async with machine.agent(service, _WELL) as second:
                with pytest.raises(
                    MachineError, match=f"agent '{own}' runs on this machine already .*: --name$"
                ):
                    await second.task
    with pytest.raises(control.NoAgent, match="no agent of this user runs on this machine"):
        await control.only_agent()


def test_a_long_name_of_a_service_or_a_host_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 200)
    names = {machine_module.default_name("s" * length) for length in (1, 63)}
    assert {len(name) for name in names} == {42, 63}
    assert len(machine_module.default_name()) == 63


async def test_a_server_that_is_away_is_the_cause_before_any_address_is(
    machine: Machine, tmp_path: Path
) -> None:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    machine.kubeconfig = tmp_path / "nowhere"
    machine.kubeconfig.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"})
    )
    machine.address = "127.0.0.1"
    async with machine.agent("web", _WELL) as running:
        with pytest.raises(Unreachable):
            await running.task


async def test_an_agent_that_no_port_of_its_service_leads_to_is_listed_with_the_reason(
    machine: Machine, service: str
) -> None:
    entry = ServiceEntry(service, "default", (AgentPort("htpp", 8080),), (_WELL,))
    running = Running(
        machine, lambda: AgentFile(machine.name, (machine.address,), "", "", (entry,))
    )
    try:
        await machine.until("ready", True)
        async with connect(machine.kubeconfig) as client:
            (row,) = [
                row
                for row in await list_agents(client, "default", time.time())
                if row.service == service
            ]
        assert row.state == "passing"
        assert row.why == (
            f"Service default/{service} has no port 'htpp': its ports are 'http'; name it with "
            "--port NAME=PORT"
        )
    finally:
        await running.end()


async def test_a_granted_account_can_do_its_work_and_nothing_else(
    machine: Machine, service: str, tmp_path: Path
) -> None:
    granted = tmp_path / "granted"
    grant = Grant(machine.name, "default", (service,), ("192.0.2.0/24",), sees_nodes=False)
    async with connect(machine.kubeconfig) as client:
        assert not await serves_policies(client)
        text = await apply_grant(
            client, from_file(machine.kubeconfig), grant, 3600.0, with_policies=False
        )
    granted.write_text(text)
    assert await granted_name(from_file(machine.kubeconfig)) == ""
    machine.kubeconfig = granted
    assert await granted_name(from_file(granted)) == machine.name, "so it needs no --name"
    async with machine.agent(service, _WELL):
        await machine.until("ready", True)
    for verb, resource, name, allowed in (
        ("patch", "endpointslices.discovery.k8s.io", f"{service}-other-4", False),
        ("create", "endpointslices.discovery.k8s.io", f"{service}-other-4", False),
        ("patch", "leases.coordination.k8s.io", f"agent-{machine.name}", True),
        ("patch", "leases.coordination.k8s.io", "agent-other", False),
        ("list", "pods", "", False),
        ("get", "services", service, True),
        ("get", "services", "kubernetes", False),
    ):
        assert await _can(granted, verb, resource, name) is allowed, (verb, resource, name)


async def test_a_token_is_renewed_and_kept_and_one_that_is_refused_forgotten(
    machine: Machine, service: str, tmp_path: Path
) -> None:
    grant = Grant(machine.name, "default", (service,), (), sees_nodes=False)
    async with connect(machine.kubeconfig) as client:
        text = await apply_grant(
            client, from_file(machine.kubeconfig), grant, 3600.0, with_policies=False
        )
    machine.kubeconfig = tmp_path / "granted"
    machine.kubeconfig.write_text(text)
    given = yaml.safe_load(text)["users"][0]["user"]["token"]
    head, payload, _ = given.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    later = json.dumps({**claims, "exp": claims["exp"] + 60}).encode()
    forged = f"{head}.{base64.urlsafe_b64encode(later).rstrip(b'=').decode()}.AAAA"
    file = tmp_path / "state" / "sliceplane-agent" / f"{machine.name}.token"
    file.parent.mkdir(parents=True)
    file.write_text(forged)
    async with machine.agent(service, _WELL):
        await machine.until("ready", True)
        kept = await eventually(lambda: file.read_text().strip(), lambda kept: kept != forged)
    assert file.stat().st_mode & 0o777 == 0o600
    machine.kubeconfig = tmp_path / "renewed"
    machine.kubeconfig.write_text(text.replace(given, kept))
    async with machine.agent(service, _WELL):
        await machine.until("ready", True)


async def _can(kubeconfig: Path, verb: str, resource: str, name: str) -> bool:
    plural, _, group = resource.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "name": name,
        "namespace": "default",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    kind = by_kind("authorization.k8s.io/v1", "SelfSubjectAccessReview")
    assert kind is not None
    async with connect(kubeconfig) as client:
        answer = await client.create(kind, "", json.dumps(review).encode())
    return bool(json.loads(answer)["status"]["allowed"])


async def test_of_two_agents_that_make_one_service_both_get_it(machine: Machine) -> None:
    name = f"web-{next(_numbers)}"
    both_look = asyncio.Barrier(2)
    async with connect(machine.kubeconfig) as client:

        class Meeting:
            get = staticmethod(client.get)

            async def perform(self, write: Write) -> bytes:
                await both_look.wait()
                return await client.perform(write)

        entry = ServiceEntry(name, "default", (AgentPort("http", 8080),), ())
        looks = [
            get_service(cast("Client", Meeting()), entry, "default", create=True) for _ in range(2)
        ]
        made, other = await asyncio.gather(*looks)
    assert made is not None
    assert made == other
    assert made.spec.ports is not None
    assert [(port.name, port.port) for port in made.spec.ports] == [("http", 80)]


async def test_an_address_outside_of_its_account_is_refused_and_said(
    machine: Machine, service: str
) -> None:
    grant = Grant(machine.name, "default", (service,), ("198.51.100.0/24",), sees_nodes=False)
    async with connect(machine.kubeconfig) as client:
        await apply_grant(client, from_file(machine.kubeconfig), grant, 3600.0, with_policies=False)
        async with machine.agent(service, _WELL):

            async def row() -> ListedAgent | None:
                rows = [
                    row
                    for row in await list_agents(client, "default", 0.0)
                    if row.service == service
                ]
                return rows[0] if rows else None

            row_seen = await eventually(
                row, lambda seen: seen is not None and seen.state == "refused"
            )
            assert row_seen.why.startswith(
                f"{machine.address} is not among the addresses that the account"
            )
            assert row_seen.address == "-", "what does not fit is taken out"


async def test_a_file_is_followed_and_what_it_loses_goes(
    machine: Machine, service: str, tmp_path: Path
) -> None:
    file = tmp_path / "agent.yaml"

    def write(*services: str) -> None:
        checks = [{"exec": "true", "period": "100ms"}]
        entries = [
            {"service": name, "namespace": "default", "ports": {"http": 8080}, "checks": checks}
            for name in services
        ]
        temporary = file.with_suffix(".new")
        temporary.write_text(
            json.dumps({"name": machine.name, "address": machine.address, "services": entries})
        )
        temporary.replace(file)

    second = f"{service}-b"
    spec = {"ports": [{"name": "http", "port": 80}]}
    machine.plane.apply(
        [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": second}, "spec": spec}]
    )
    write(service, second)
    running = Running(machine, lambda: read_agent_file(file.read_bytes()), path=file)
    await eventually(lambda: asyncio.to_thread(machine.slices), lambda seen: len(seen) == 2)
    write(second)
    await eventually(lambda: asyncio.to_thread(machine.slices), lambda seen: len(seen) == 1)
    file.write_text("services: 3")
    await machine.until("ready", True)
    assert not running.task.done(), "a mistake in the file ends nothing"
    assert await running.end() == 0
    assert machine.slices() == []


async def test_the_command_itself(machine: Machine, service: str) -> None:
    """Flags, signals and texts; the other tests call what it calls."""
    command = (sys.executable, "-m", "sliceplane", "agent")
    environment = {**os.environ, "KUBECONFIG": str(machine.kubeconfig)}
    process = await asyncio.create_subprocess_exec(
        *(
            *command,
            "run",
            service,
            "--name",
            machine.name,
            "--address",
            machine.address,
            "--port",
            "8080",
        ),
        *("--drain", "0", "--exec", "true", "--period", "100ms", "--", "sh", "-c", _LONG),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    said = b""
    try:
        while not said.endswith(f"default/{service}: passing\n".encode()):
            line = await process.stdout.readline()
            assert line, said
            said += line
        await machine.until("ready", True)
        asked = await asyncio.create_subprocess_exec(
            *command, "status", machine.name, env=environment, stdout=asyncio.subprocess.PIPE
        )
        text = (await asked.communicate())[0].decode()
        assert f"default/{service}" in text
        assert asked.returncode == 0, text
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        out = (await process.communicate())[0].decode()
    assert process.returncode == 7
    assert "the process ended with exit code 7" in out
