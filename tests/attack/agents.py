"""Agents: an account of one that writes other labels, names and addresses than its grant has, and
Leases by strangers.

The account's own writes go to our server, which refuses them. To see what the controller does where
a server has no such admission, the same objects are written by the administrator: so a foreign API
server would let them in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from benchmarks.tools.process import PlaneProcess, child_environment
from tests.attack.harness import Attack, Figure, admin_context, alive, anonymous_context
from tests.attack.rights import Client

from sliceplane.agent.rights import grants
from sliceplane.consume.agents.registration import LABEL_AGENT, MANAGED_BY, lease_name, slice_name

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
SERVICE = "kubernetes.io/service-name"
MANAGER = "endpointslice.kubernetes.io/managed-by"
ANNOTATION_STATE = "agent.sliceplane.dev/state"
CIDR = "192.0.2.0/24"
#: an address of the grant that does not answer
NOBODY = "192.0.2.77"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
#: what a Lease lasts here; it is over a second later
LEASE_SECONDS = 3
WITHDRAWN_SECONDS_MAX = 9.0
PATIENCE_SECONDS = 12.0
STRANGERS, SCANNED_PORTS = 8, 20
_POLL_S = 0.1
_START_SECONDS_MAX = 4.0


@dataclass(slots=True)
class Scene:
    plane: PlaneProcess
    admin: Client
    #: with the token of vm-1's account
    agent: Client

    async def slice(self, name: str) -> dict[str, Any]:
        code, body = await self.admin.ask("GET", f"{SLICES.format('default')}/{name}")
        return json.loads(body) if code == 200 else {}

    async def addresses(self, name: str) -> list[str]:
        """Addresses of the slice to which traffic is sent."""
        endpoints = (await self.slice(name)).get("endpoints") or []
        return [
            endpoint["addresses"][0]
            for endpoint in endpoints
            if endpoint["conditions"].get("ready", True)
        ]

    async def until_gone(self, name: str, seconds_max: float = PATIENCE_SECONDS) -> float:
        """Seconds until no traffic is sent to the slice's endpoint, at most *seconds_max*."""
        began = time.monotonic()
        while time.monotonic() - began < seconds_max and await self.addresses(name):
            await asyncio.sleep(_POLL_S)
        return round(time.monotonic() - began, 1)

    async def renew(self, name: str, number: int, label: str = "") -> None:
        head = {"labels": {LABEL_AGENT: label}} if label else {}
        change = {"metadata": head, "spec": {"leaseTransitions": number}}
        await self.admin.ask(
            "PATCH", f"{LEASES.format('default')}/{lease_name(name)}", change, content_type=_MERGE
        )

    async def grant(self, agent: str, *services: str, cidr: str | None = CIDR) -> None:
        paths = {
            "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
            "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
            "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        }
        for document in grants(agent, "default", services, cidrs=() if cidr is None else (cidr,)):
            if document["kind"] in paths:
                await self.admin.make(paths[document["kind"]], document)

    async def register(
        self, agent: str, address: str, *ports: int, seconds: int = LEASE_SECONDS
    ) -> None:
        """Lease and slice of *agent*, as the administrator."""
        await self.admin.make(LEASES.format("default"), lease(agent, seconds=seconds))
        await self.admin.make(SLICES.format("default"), endpoint_slice(agent, address, *ports))


def lease(agent: str, label: str = "", seconds: int = LEASE_SECONDS) -> dict[str, Any]:
    head = {"name": lease_name(agent), "labels": {LABEL_AGENT: label or agent}}
    return {"metadata": head, "spec": {"holderIdentity": "h", "leaseDurationSeconds": seconds}}


def endpoint_slice(
    agent: str,
    address: str = "192.0.2.1",
    *ports: int,
    service: str = "web",
    manager: str = MANAGED_BY,
    label: str = "",
) -> dict[str, Any]:
    labels = {SERVICE: service, MANAGER: manager, LABEL_AGENT: label or agent}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name("web", agent, "IPv4"),
            "labels": {name: value for name, value in labels.items() if value},
            "annotations": {ANNOTATION_STATE: "passing"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True, "serving": True}}],
        "ports": [
            {"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports or (8080,)
        ],
    }


@contextlib.asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[Scene]:
    """A plane with Services web and bank, and an agent vm-1 with a grant for web."""
    with PlaneProcess(folder) as plane:
        as_admin = aiohttp.TCPConnector(ssl=admin_context(plane))
        as_agent = aiohttp.TCPConnector(ssl=anonymous_context())
        async with (
            aiohttp.ClientSession(connector=as_admin) as ours,
            aiohttp.ClientSession(connector=as_agent) as theirs,
        ):
            scene = Scene(plane, Client(ours, plane.url), Client(theirs, plane.url))
            for name in ("web", "bank"):
                document = {
                    "metadata": {"name": name},
                    "spec": {"ports": [{"name": "http", "port": 80}]},
                }
                await scene.admin.make("/api/v1/namespaces/default/services", document)
            await scene.grant("vm-1", "web")
            path = "/api/v1/namespaces/default/serviceaccounts/agent-vm-1/token"
            token = (await scene.admin.make(path, {"spec": {}}))["status"]["token"]
            theirs.headers["authorization"] = f"Bearer {token}"
            yield scene


#: what vm-1 writes instead
_LIES: tuple[dict[str, str], ...] = (
    {"service": "bank"},
    {"service": ""},
    {"manager": "me.example.com"},
    {"manager": ""},
    {"manager": "endpointslice-controller.k8s.io"},
    {"label": "vm-2"},
    {"address": "10.99.99.99"},
    {"address": "10.99.99.99", "manager": ""},
)


async def labels(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as scene:
        name = slice_name("web", "vm-1", "IPv4")
        path = f"{SLICES.format('default')}/{name}"
        honest = endpoint_slice("vm-1")
        let_in = 0
        for lie in _LIES:
            wrong = endpoint_slice("vm-1", **lie)
            code, _ = await scene.agent.ask(
                "PATCH", f"{path}?fieldManager=a&force=true", wrong, content_type=_APPLY
            )
            let_in += code < 400
            await scene.admin.ask("DELETE", path)
            code, _ = await scene.agent.ask(
                "PATCH", f"{path}?fieldManager=a&force=true", honest, content_type=_APPLY
            )
            assert code in (200, 201), "an honest slice is let in"
            change = {
                "metadata": {"labels": wrong["metadata"]["labels"]},
                "endpoints": wrong["endpoints"],
            }
            for label in (SERVICE, MANAGER):
                change["metadata"]["labels"].setdefault(label, None)
            code, _ = await scene.agent.ask("PATCH", path, change, content_type=_MERGE)
            let_in += code < 400
            await scene.admin.ask("DELETE", path)
        leases = LEASES.format("default")
        code, _ = await scene.agent.ask(
            "PATCH",
            f"{leases}/agent-vm-1?fieldManager=a",
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease("vm-1")},
            content_type=_APPLY,
        )
        assert code in (200, 201), "an honest Lease is let in"
        relabelled = {"metadata": {"labels": {LABEL_AGENT: "vm-2"}}}
        code, _ = await scene.agent.ask(
            "PATCH", f"{leases}/agent-vm-1", relabelled, content_type=_MERGE
        )
        let_in += code < 400
        return Figure(
            "writes past the grant that were let in", let_in, f"of {2 * len(_LIES) + 1}", 0
        ), alive(scene.plane)


async def foreign(folder: Path) -> Sequence[Figure]:
    """Each lie is a slice of its own agent, so that all are judged at once."""
    async with attacked(folder) as scene:
        names = []
        for number, lie in enumerate(_LIES):
            agent = f"f{number}"
            await scene.grant(agent, "web")
            await scene.admin.make(LEASES.format("default"), lease(agent))
            await scene.admin.make(SLICES.format("default"), endpoint_slice(agent, **lie))
            names.append(slice_name("web", agent, "IPv4"))
        began = time.monotonic()
        stay = names
        # before their Leases run out, which withdraws those of agents that are known as such
        while stay and time.monotonic() - began < LEASE_SECONDS:
            await asyncio.sleep(_POLL_S)
            stay = [name for name in stay if await scene.addresses(name)]
        seconds = round(time.monotonic() - began, 2)
        return (
            Figure(
                "slices past their grant that keep their endpoint", len(stay), f"of {len(names)}", 0
            ),
            Figure("until the last was emptied", seconds, "s", LEASE_SECONDS),
            alive(scene.plane),
        )


async def relabelled_lease(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as scene:
        await scene.grant("vm-2", "web")
        await scene.register("vm-2", NOBODY, seconds=2 * LEASE_SECONDS)
        victim = slice_name("web", "vm-2", "IPv4")
        await scene.admin.make(LEASES.format("default"), lease("vm-1", "vm-2", seconds=1))
        changes = 0
        version = (await scene.slice(victim))["metadata"]["resourceVersion"]
        for number in range(
            1, 4
        ):  # vm-2 lives, and after each renewal vm-1 says in its name that it lasts a second
            await scene.renew("vm-2", number)
            await scene.renew("vm-1", number, "vm-2")
            await asyncio.sleep(LEASE_SECONDS)
            seen = (await scene.slice(victim))["metadata"]["resourceVersion"]
            changes += seen != version
            version = seen
        await scene.admin.ask("DELETE", f"{SLICES.format('default')}/{victim}")
        await scene.admin.ask("DELETE", f"{LEASES.format('default')}/agent-vm-2")
        await scene.register("vm-2", NOBODY)
        withdrawn = asyncio.create_task(scene.until_gone(victim))
        while not withdrawn.done():  # now vm-2 is dead, and vm-1 renews for it
            number += 1
            await scene.renew("vm-1", number, "vm-2")
            await asyncio.sleep(_POLL_S)
        return (
            Figure("changes of another agent's living endpoint", changes, "changes", 0),
            Figure(
                "until another agent's dead endpoint is withdrawn",
                withdrawn.result(),
                "s",
                WITHDRAWN_SECONDS_MAX,
            ),
            alive(scene.plane),
        )


async def mass_hold(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as scene:
        await scene.grant("vm-2", "web")
        await scene.admin.make("/api/v1/namespaces", {"metadata": {"name": "evil"}})
        await scene.register("vm-2", NOBODY)
        for number in range(STRANGERS):
            await scene.admin.make(LEASES.format("evil"), lease(f"e{number}"))
        seconds = await scene.until_gone(slice_name("web", "vm-2", "IPv4"))
        return (
            Figure(
                "until a silent agent is withdrawn beside many strange Leases",
                seconds,
                "s",
                WITHDRAWN_SECONDS_MAX,
            ),
            alive(scene.plane),
        )


@contextlib.contextmanager
def _doors() -> Iterator[tuple[str, list[socket.socket]]]:
    """Ports of this machine that count who comes, at an address that an endpoint may have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.254", 9))  # no packet: the kernel chooses a route
        address = probe.getsockname()[0]
    assert not address.startswith("127."), "needs an address that is not loopback"
    with contextlib.ExitStack() as stack:
        doors = []
        for _ in range(SCANNED_PORTS):
            door = stack.enter_context(socket.create_server((address, 0)))
            door.setblocking(False)
            doors.append(door)
        yield address, doors


def _was_visited(door: socket.socket) -> bool:
    try:
        door.accept()[0].close()
    except BlockingIOError:
        return False
    return True


async def port_scan(folder: Path) -> Sequence[Figure]:
    with _doors() as (address, doors):
        async with attacked(folder) as scene:
            ports = [door.getsockname()[1] for door in doors]
            for number in range(
                6
            ):  # with networks that do not hold the address, without networks, without a grant
                agent = f"s{number}"
                if number < 4:
                    await scene.grant(agent, "web", cidr="198.51.100.0/24" if number < 2 else None)
                await scene.register(agent, address, *ports)
            await asyncio.sleep(LEASE_SECONDS + 4)
            visited = sum(_was_visited(door) for door in doors)
            return Figure(
                "ports that the control plane opened for them", visited, f"of {len(doors)}", 0
            ), alive(scene.plane)


#: what somebody put into the state folder, or made of it
_PLANTED: tuple[str, ...] = (
    "token-fifo",
    "token-huge",
    "identity-fifo",
    "lock-link",
    "new-token-link",
    "open-folder",
)


def _plant(what: str, state: Path, victim: Path) -> None:
    match what:
        case "token-fifo":
            os.mkfifo(state / "vm-1.token")
        case "token-huge":
            (state / "vm-1.token").touch()
            os.truncate(state / "vm-1.token", 8 << 30)
        case "identity-fifo":
            os.mkfifo(state / "host-id")
        case "lock-link":
            (state / "vm-1.lock").symlink_to(victim)
        case "new-token-link":
            (state / "vm-1.new").symlink_to(victim)
        case "open-folder":
            state.chmod(0o777)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


async def state_folder(folder: Path) -> Sequence[Figure]:
    victim = folder / "victim"
    hung = changed = crashed = 0
    async with attacked(folder) as scene:
        kubeconfig = yaml.safe_load(scene.plane.kubeconfig.read_text())
        token = scene.agent.session.headers["authorization"].removeprefix("Bearer ")
        kubeconfig["users"][0]["user"] = {"token": token}
        (folder / "vm-1.kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        for what in _PLANTED:
            victim.write_text("precious")
            state = folder / what
            state.mkdir(mode=0o700)
            _plant(what, state, victim)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sliceplane", "agent", "register", "web", "--name", "vm-1"),
                *(
                    "--address",
                    NOBODY,
                    "--port",
                    "8080",
                    "--kubeconfig",
                    str(folder / "vm-1.kubeconfig"),
                    "--drain",
                    "0",
                ),
                env=child_environment()
                | {"STATE_DIRECTORY": str(state), "XDG_RUNTIME_DIR": str(state)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                preexec_fn=_limit_memory,
            )
            assert process.stdout is not None
            try:  # a line of a running agent, or its end
                async with asyncio.timeout(_START_SECONDS_MAX):
                    await process.stdout.readline()
            except TimeoutError:
                hung += 1
                process.kill()
            else:
                await asyncio.sleep(0.5)  # the token is renewed at the start
                if process.returncode is None:
                    process.terminate()
            _, errors = await process.communicate()
            crashed += b"Traceback" in errors
            changed += victim.read_text() != "precious"
        return (
            Figure("agents that hang at their start", hung, f"of {len(_PLANTED)}", 0),
            Figure("agents that end in a traceback", crashed, f"of {len(_PLANTED)}", 0),
            Figure("files behind links that were changed", changed, "files", 0),
            alive(scene.plane),
        )


ATTACKS = (
    Attack(
        "agents-labels",
        "an agent's account writes other labels and addresses than its grant has",
        labels,
    ),
    Attack("agents-foreign-labels", "the same where the API server lets it in", foreign),
    Attack(
        "agents-relabelled-lease",
        "an agent's Lease with the label of another agent",
        relabelled_lease,
    ),
    Attack("agents-mass-hold", "Leases of another namespace that fall silent together", mass_hold),
    Attack(
        "agents-state-folder",
        "links, FIFOs and gigabytes where an agent keeps its state",
        state_folder,
    ),
    Attack(
        "agents-port-scan", "agents that are held, whose ports the control plane probes", port_scan
    ),
)
