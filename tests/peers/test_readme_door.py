"""README's door "With an existing cluster", typed from nothing on Kubernetes' own kube-apiserver,
kube-controller-manager and three kube-proxies, on a screen of 80 columns.

The commands are README's, with the rights of ``deploy/manifests/reader.yaml``; then the administrator
follows the advice of ``check``: the observer on every node, and a drain.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Final

import pytest
from tests.e2e.running import PYTHON_ENVIRONMENT, ROOT, kubectl
from tests.figures import tell
from tests.peers.control_plane import PodProcesses
from tests.peers.played_nodes import Cluster, Programs, cluster
from tests.waiting import eventually
from tools.guides import Step, Terminal, commands, terminal

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(2400)]

README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_S: Final = 400.0
COLUMNS: Final = 80
UNREPORTED: Final = "3 of 3 Nodes reported no progress (node-1, node-2, node-3)"
#: commands of the door that show something: what the user must read there
SHOWN: Final = {
    "COLUMNS=80 sliceplane check": UNREPORTED,
    "sliceplane trace": "verdict dnat: Service default/demo-svc port tcp leads to one of",
    "sliceplane endpoints audit": "safe to switch the Endpoints controller off: yes",
    "sliceplane controllers --shadow": "no difference in",
}
#: arguments and exit code of the commands in the table of symptoms; ``None``: it serves, or asks a
#: program of ours that does not run here
TABLE: Final[dict[str, tuple[str, int] | None]] = {
    "sliceplane check": ("", 0),
    "sliceplane explain": ("service demo-svc", 0),
    "sliceplane lint": ("", 0),
    "sliceplane status": ("", 0),
    "sliceplane ui": None,
    "sliceplane drift": ("", 2),
    "sliceplane trace": ("--to demo-svc", 0),
    "sliceplane timeline": ("service demo-svc", 0),
    "sliceplane recorder": None,
    "sliceplane what-if": ("demo-svc", 0),
    "sliceplane dns query --why": ("demo-svc", 0),
    "sliceplane xds status": None,
    "sliceplane drain": ("deployment demo --evict --dry-run", 2),
}
#: a user with the rights of the reader, beside the administrator's kubeconfig
VIEWER: Final = """kubectl create serviceaccount viewer
kubectl apply -f deploy/manifests/reader.yaml
kubectl create clusterrolebinding viewer --clusterrole=sliceplane-reader --serviceaccount=default:viewer
kubectl config view --raw --flatten --minify >viewer.kubeconfig
kubectl --kubeconfig viewer.kubeconfig config unset users
kubectl --kubeconfig viewer.kubeconfig config set-credentials it --token=$(kubectl create token viewer)
export ADMIN=$KUBECONFIG KUBECONFIG=$PWD/viewer.kubeconfig""".splitlines()


class Screen:
    """A terminal of 80 columns."""

    def __init__(self, shell: Terminal) -> None:
        self._shell = shell

    async def type(self, command: str, code: int = 0) -> str:
        """Returns what the command prints; its lines fit on the screen unless they are notes, that
        a user may paste, or lines of a zone file.
        """
        began = time.monotonic()
        step = Step(command, (), code=code)
        lines = await asyncio.to_thread(self._shell.run, step, COMMAND_S)
        tell(f"{time.monotonic() - began:6.2f} s  {command}")
        if command.startswith(("COLUMNS=80", "sliceplane")) and " dns " not in command:
            printed = [line for line in lines if not line.startswith(("Note: ", "Error: "))]
            assert max(map(len, printed), default=0) <= COLUMNS, "\n".join(printed)
        return " ".join(" ".join(lines).split())


def door() -> list[Step]:
    return list(
        commands(README.partition("## With an existing cluster\n")[2].partition("\n## ")[0])
    )


def symptoms() -> list[str]:
    section = README.partition("## Something is wrong\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| .* \| `(sliceplane [^`]*)` \|$", section, re.MULTILINE)


async def test_the_commands_of_the_door_on_a_real_cluster(
    kube_apiserver: str, manager: str, kube_proxy: str, tmp_path: Path
) -> None:
    programs = Programs(kube_apiserver, manager, kube_proxy)
    async with cluster(tmp_path, programs) as place:
        environment = {
            "KUBECONFIG": place.plane.kubeconfig,
            "PYTHONPATH": PYTHON_ENVIRONMENT["PYTHONPATH"],
            "COLUMNS": str(COLUMNS),
        }
        with terminal("env", **environment) as shell:
            screen = Screen(shell)
            await screen.type("kubectl apply -f demo/manifest.yaml")
            await screen.type(
                "kubectl wait --for=condition=Available deployment/demo --timeout=300s"
            )
            await eventually(lambda: asyncio.to_thread(judged, place), within_s=300)
            for command in VIEWER:
                await screen.type(command)
            await look(screen)
            await observe_and_drain(place, screen, tmp_path)


def judged(place: Cluster) -> bool:
    """The Service has its endpoints, so nothing is too young to judge."""
    path = "jsonpath={.items[*].endpoints[*].conditions.ready}"
    label = "kubernetes.io/service-name=demo-svc"
    printed = kubectl(place.plane, "get", "endpointslices", "-l", label, "-o", path)
    return printed.split() == ["true"] * 5


async def look(screen: Screen) -> None:
    """The door's commands and those of the table, before any node reports."""
    for step in door():
        text = await screen.type(step.command)
        (shown,) = [text for begin, text in SHOWN.items() if step.command.startswith(begin)]
        assert shown in text, (step.command, text)
    for command in symptoms():
        if (run := TABLE[command]) is not None:
            arguments, code = run
            await screen.type(f"{command} {arguments}".strip(), code)


async def observe_and_drain(place: Cluster, screen: Screen, folder: Path) -> None:
    """The advice of ``check``: the observer on each node; then all nodes report, and a drain is
    proven.
    """
    nodes = {name: tuple(host.place.command()) for name, host in place.hosts.items()}
    install = "kubectl apply -f deploy/manifests/observer.yaml"
    assert install in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    async with PodProcesses(
        place.plane, place.client, folder, "kube-system", nodes
    ).running() as pods:
        await screen.type(f"KUBECONFIG=$ADMIN {install}")
        ready = "-o jsonpath='{.status.numberReady}'"
        await screen.type(
            'until [ "$(KUBECONFIG=$ADMIN kubectl get daemonset sliceplane-observer -n kube-system '
            f'{ready})" = 3 ]; do sleep 1; done'
        )
        await screen.type("until sliceplane drift >drift.txt; do sleep 1; done")
        assert "unknown nothing" in await screen.type("COLUMNS=80 sliceplane check")
        await screen.type("sliceplane status")
        drained = await screen.type("KUBECONFIG=$ADMIN sliceplane drain deployment demo --evict")
        assert drained.count("drained: 3 nodes hold version") == 5, drained
        assert not pods.done(), pods.exception()
