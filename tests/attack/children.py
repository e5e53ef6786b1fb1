"""Attacks on processes that others start: what is killed takes its children along, and a child
holds what it needs.

SIGKILL is what the OOM killer sends, too. A child's credentials are tried as who took them over
would.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess, Process
from tests.attack.harness import Attack, Figure
from tests.attack.health_ports import _NODE, node
from tests.ports import free_port
from tests.process_table import children_of, words_of

from sliceplane.consume.progress import ANNOTATION_REVISION
from sliceplane.watch.io.kubeconfig import from_file

LEFT_AFTER_S = 2.0
AGAIN_SECONDS_MAX = 5.0
READY_AGAIN_SECONDS_MAX = 10.0
SETTLED_S = 2.0
STOPPED_S = 12.5
FOLLOWED_SECONDS_MAX = 5.0
#: method and path of what no name server and no xDS server has to do, with a body where there is
#: one
FORBIDDEN: tuple[tuple[str, str, object], ...] = (
    ("GET", "/api/v1/secrets", None),
    ("GET", "/api/v1/pods", None),
    ("GET", "/api/v1/configmaps", None),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", None),
    ("GET", "/sliceplane/snapshot", None),
    ("GET", "/sliceplane/recording", None),
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "taken"}}),
    ("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "taken"}}),
    (
        "POST",
        "/api/v1/namespaces/default/services",
        {"metadata": {"name": "taken"}, "spec": {"ports": [{"port": 1}]}},
    ),
    (
        "POST",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        {
            "metadata": {"name": "taken", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.66"]}],
            "ports": [],
        },
    ),
    ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", {"spec": {}}),
    (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "taken"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"kind": "User", "name": "x", "apiGroup": "rbac.authorization.k8s.io"}],
        },
    ),
    (
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
        {"metadata": {"name": "sliceplane-proxy-taken"}},
    ),
    (
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        {"metadata": {"name": "taken"}},
    ),
    ("DELETE", "/api/v1/namespaces/default/services/kubernetes", None),
    (
        "DELETE",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/sliceplane-proxy-taken",
        None,
    ),
)


def _is_running(pid: int | str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _is_private(path: Path) -> bool:
    return not path.stat().st_mode & 0o077


def _all() -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _is_running(entry.name)
    ]


async def _seconds_until(holds: Callable[[], bool], limit_s: float) -> float:
    began = time.monotonic()
    while not holds() and time.monotonic() - began < limit_s:
        await asyncio.sleep(0.02)
    return round(time.monotonic() - began, 2)


async def killed_plane(folder: Path) -> Sequence[Figure]:
    """The name server answers on for a minute, and the next start replaces it."""
    flags = ("--dns", f"127.0.0.1:{free_port()}", "--xds", f"127.0.0.1:{free_port()}")
    left: list[int] = []
    again = 99.0
    try:
        with PlaneProcess(folder, *flags) as plane:
            left = children_of(plane.process.pid)
            assert len(left) == 2
            plane.process.kill()
            plane.process.wait()
            gone = await _seconds_until(lambda: sum(map(_is_running, left)) < 2, LEFT_AFTER_S)
        remaining = [words_of(pid)[3] for pid in left if _is_running(pid)]
        replaced = 99
        began = time.monotonic()
        try:
            with PlaneProcess(folder, *flags):
                again = round(time.monotonic() - began, 2)
                replaced = sum(map(_is_running, left))
        except RuntimeError:  # it did not start
            pass
    finally:
        for pid in filter(_is_running, left):
            os.kill(pid, signal.SIGKILL)
    return (
        Figure(
            f"children but the name server that run {LEFT_AFTER_S:.0f} s later",
            len(remaining) - remaining.count("dns"),
            "of 1",
            0,
        ),
        Figure("the first child is gone after", gone, "s", LEFT_AFTER_S),
        Figure("children of the killed plane that run beside the next one's", replaced, "of 2", 0),
        Figure("the next start at the same ports answers after", again, "s", AGAIN_SECONDS_MAX),
    )


async def stopped_plane(folder: Path) -> Sequence[Figure]:
    """A service manager sends SIGTERM to every process of a unit; one of them is slow to end."""
    with PlaneProcess(folder, "--dns", "127.0.0.1:0", "--xds", "127.0.0.1:0") as plane:
        children = children_of(plane.process.pid)
        (slow,) = (pid for pid in children if words_of(pid)[3] == "xds")
        os.kill(slow, signal.SIGSTOP)
        for pid in (*children, plane.process.pid):
            os.kill(pid, signal.SIGTERM)
        took = await _seconds_until(lambda: plane.process.poll() is not None, 20)
    recordings = len(list((folder / "data").glob("recordings/*")))
    return (
        Figure("recordings of an incident", recordings, "files", 0),
        Figure("the stop takes, with 5 s for the slow child", took, "s", 8),
        Figure("children that run", sum(map(_is_running, children)), "of 2", 0),
        Figure("exit code", float(plane.process.returncode or 0), "", 0),
    )


async def child_credentials(folder: Path) -> Sequence[Figure]:
    done: list[str] = []
    needed = modes = 0
    with PlaneProcess(folder, "--dns", "127.0.0.1:0", "--xds", "127.0.0.1:0") as plane:
        children = children_of(plane.process.pid)
        for pid in children:
            words = words_of(pid)
            path = Path(words[words.index("--kubeconfig") + 1])
            modes += not _is_private(path)
            connection = from_file(path)
            headers = (
                {"Authorization": value}
                if (value := await connection.credentials.authorization())
                else {}
            )
            connector = aiohttp.TCPConnector(ssl=connection.ssl_context or True)
            async with aiohttp.ClientSession(
                plane.url, connector=connector, headers=headers
            ) as session:
                async with session.get("/api/v1/services") as answer:
                    needed += answer.status == 200
                for method, request, body in FORBIDDEN:
                    async with session.request(method, request, json=body) as answer:
                        if answer.status not in (401, 403):
                            done.append(f"{words[3]}: {method} {request}: {answer.status}")
    for line in done:
        print(f"    {line}")
    return (
        Figure("forbidden things that children may do", len(done), f"of {2 * len(FORBIDDEN)}", 0),
        Figure("files that others may read", modes, "files", 0),
        Figure("children that may read Services", needed, "of 2", 2, at_least=True),
    )


async def killed_agent(folder: Path) -> Sequence[Figure]:
    """The agent is killed, its process is not: the next start must neither double it nor lose
    it.
    """
    port = free_port()
    server = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    environment = {"XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}
    environment["HOME"] = str(folder)

    def copies() -> list[int]:
        return [pid for pid in _all() if words_of(pid)[1:4] == ["-m", "http.server", str(port)]]

    with PlaneProcess(folder) as plane:
        command = (
            *(
                sys.executable,
                "-m",
                "sliceplane",
                "agent",
                "run",
                "web",
                "--name",
                "vm-1",
                "--address",
                "192.0.2.9",
            ),
            *(
                "--kubeconfig",
                str(plane.kubeconfig),
                "--port",
                str(port),
                "--create-service",
                "--drain",
                "0s",
            ),
            *("--exec", "true", "--period", "200ms", "--", *server),
        )
        most = 0
        with Process(*command, log=folder / "first.log", **environment) as first:
            while "passing" not in first.line():
                pass
            (before,) = copies()
            first.process.kill()
            first.process.wait()
            assert first.process.stdout is not None, "it is a pipe"
            # the process that lives on has it, too: its end would not come
            first.process.stdout.close()
        survived = _is_running(before)
        began = time.monotonic()
        ready = 99.0
        with Process(*command, log=folder / "second.log", **environment) as second:
            reading = asyncio.create_task(asyncio.to_thread(_until_passing, second))
            while not reading.done() and time.monotonic() - began < READY_AGAIN_SECONDS_MAX:
                most = max(most, len(copies()))
                await asyncio.sleep(0.02)
            if reading.done() and reading.result():
                ready = round(time.monotonic() - began, 2)
            await asyncio.sleep(SETTLED_S)
            most = max(most, len(copies()))
            lives = second.process.poll() is None and bool(copies())
            second.process.terminate()
            second.process.wait()
            await reading
        left = copies()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    return (
        Figure(
            "processes that outlive the killed agent, as chosen", survived, "of 1", 1, at_least=True
        ),
        Figure("copies of the process at the same time", most, "processes", 1),
        Figure("agents that run with it afterwards", lives, "of 1", 1, at_least=True),
        Figure("the next agent says that it passes after", ready, "s", READY_AGAIN_SECONDS_MAX),
        Figure("processes left after a clean end", len(left), "processes", 0),
    )


def _until_passing(agent: Process) -> bool:
    try:
        while "passing" not in agent.line(READY_AGAIN_SECONDS_MAX):
            pass
    except RuntimeError:  # it ended
        return False
    return True


async def stopped_proxy(folder: Path) -> Sequence[Figure]:
    """A node proxy that is stopped, as by a debugger or a frozen cgroup, while endpoints change."""
    async with node(folder) as attacked:
        plane = attacked.plane
        lease = f"{plane.url}/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/sliceplane-proxy-{_NODE}"
        slices = f"{plane.url}/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web"

        async def told() -> int:
            async with attacked.session.get(lease) as answer:
                document = await answer.json()
            return int(
                document.get("metadata", {}).get("annotations", {}).get(ANNOTATION_REVISION, 0)
            )

        await attacked.serve("web")
        began = time.monotonic()
        while not await told() and time.monotonic() - began < 15:
            await asyncio.sleep(0.1)
        os.kill(attacked.proxy.process.pid, signal.SIGSTOP)
        try:
            change = {"endpoints": [{"addresses": ["192.0.2.77"], "nodeName": _NODE}]}
            headers = {"Content-Type": "application/merge-patch+json"}
            async with attacked.session.patch(
                slices, data=json.dumps(change), headers=headers
            ) as answer:
                revision = int((await answer.json())["metadata"]["resourceVersion"])
            lies = 0
            ends = time.monotonic() + STOPPED_S
            while time.monotonic() < ends:
                lies += await told() >= revision
                await asyncio.sleep(0.5)
            arguments = ("-m", "sliceplane", "drift", "--kubeconfig", str(plane.kubeconfig))
            said = await asyncio.to_thread(
                subprocess.run,
                (sys.executable, *arguments),
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            os.kill(attacked.proxy.process.pid, signal.SIGCONT)
        written = await attacked.written_s("192.0.2.77", 2 * FOLLOWED_SECONDS_MAX)
        return (
            Figure("times that its Lease told what the kernel did not have", lies, "times", 0),
            Figure(
                "drift says that it is behind", "behind" in said.stdout, "times", 1, at_least=True
            ),
            Figure(
                "continued, it has the change in the kernel after",
                written,
                "s",
                FOLLOWED_SECONDS_MAX,
            ),
            Figure("tracebacks in its log", attacked.said("Traceback"), "tracebacks", 0),
        )


ATTACKS = (
    Attack(
        "killed-plane",
        "kill -9 of a plane with a name server and an xDS server beside it",
        killed_plane,
    ),
    Attack("stopped-plane", "SIGTERM to a plane and all its children at once", stopped_plane),
    Attack(
        "child-credentials",
        "what the name server and the xDS server of a plane hold, in other hands",
        child_credentials,
    ),
    Attack(
        "killed-agent",
        "kill -9 of an agent whose process lives on, and a start after it",
        killed_agent,
    ),
    Attack("stopped-node-proxy", "SIGSTOP of a node proxy while endpoints change", stopped_proxy),
)
