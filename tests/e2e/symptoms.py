"""Fifteen things that go wrong, made for real: what a person does and sees.
``tools/make_symptoms.py`` writes ``docs/troubleshooting.md`` of them, and ``test_symptoms.py``
looks whether they are so.

The story is played in order by one shell after the other, in a folder with a plane that ends
half-way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import until

ROOT = Path(__file__).parents[2]
#: The deadline of one command line, for what hangs.
STEP_S = 300
#: The first minute of a Service or Pod is no trouble yet: who asks has a clock that is so far
#: ahead.
AHEAD_S = 65.0
#: "sliceplane" on the path of the story
PROGRAM = f"""\
#!{sys.executable}
import sys, time
from sliceplane.cli.entry import main

if "explain" in sys.argv:
    clock = time.time
    time.time = lambda: clock() + {AHEAD_S}
main()
"""


@dataclass(frozen=True)
class Step:
    """One command line; *says* is a pattern that its output has, *code* its exit code."""

    line: str
    says: str
    code: int = 0
    #: beside it, not shown: makes the trouble, or takes it away
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Symptom:
    title: str
    why: str
    do: str
    steps: tuple[Step, ...]
    #: findings whose pages say more
    codes: tuple[str, ...] = ()


UP = (
    "sliceplane up --data-dir data --secure-port $PORT --emulate --emulate-nodes 2 --zones "
    "zone-a,zone-b"
)
#: a plane in the background, until STOP; it is the shell's own child, so its number is in a file
#: (what an earlier one said in it goes first: the redirection of a command in the background may
#: come later)
START = (
    f": >up.out; {UP} >up.out 2>up.log & echo $! >pid; until grep -q ^ready up.out; do kill -0 "
    "$!; sleep 0.1; done"
)
STOP = "kill $(cat pid); while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done"
#: without emulation and controllers instead
ALONE = (
    f"{STOP}; : >up.out; sliceplane apiserver --data-dir data --secure-port $PORT >up.out "
    "2>up.log & echo $! >pid2;"
    " until grep -q ^ready up.out; do kill -0 $!; sleep 0.1; done; mv pid2 pid"
)
#: the address of one of the Pods of "web"
POD_IP = "$(kubectl get pods -l app=web -o jsonpath='{.items[0].status.podIP}')"

STORY: tuple[Symptom, ...] = (
    Symptom(
        "A client gets no answer from a Service: it has no endpoints",
        "The Service's selector matches no Pod, so its addresses refuse connections.",
        "Follow the remedy of `explain`. `sliceplane trace` shows what the rules do with "
        "a packet, and which slices are ignored.",
        (
            Step(
                "kubectl get endpointslices -l kubernetes.io/service-name=shop",
                r"<unset> +<unset>",
                before="kubectl create deployment web --image=x --replicas=2;"
                " kubectl create service clusterip shop --tcp=80:8080;"
                " kubectl wait --for=condition=Available deployment/web",
            ),
            Step(
                f"sliceplane trace --from {POD_IP} --to shop.default | head -1",
                r"verdict +reject: .* has no endpoints",
            ),
            Step("sliceplane explain service shop", r"^cause +B1 ", 1),
        ),
        codes=("B1", "B5", "B6", "B7"),
    ),
    Symptom(
        "A client gets no answer from a Service: its Pods are not ready",
        "Endpoints exist, but none is ready (readiness probe, `Ready` condition), so they"
        " get no traffic.",
        "Examine the Pods, not the Service. To reach unready Pods set `publishNotReadyAddresses`.",
        (
            Step(
                "kubectl get endpointslices -l kubernetes.io/service-name=web"
                " -o jsonpath='{.items[*].endpoints[*].conditions}'",
                r'"ready":false',
                before="kubectl create service clusterip web --tcp=80:8080;"
                " kubectl annotate pods -l app=web emulation.sliceplane.dev/ready=false",
            ),
            Step(
                "sliceplane explain service web",
                r"^cause +R6 ",
                1,
                after="kubectl annotate pods -l app=web emulation.sliceplane.dev/ready-",
            ),
        ),
        codes=("R3", "R4", "R5", "R6", "R7"),
    ),
    Symptom(
        "Pods of a Deployment never start",
        "No scheduler and no kubelet runs here; only `sliceplane up --emulate` creates "
        "Pods of Deployments.",
        "Start with `--emulate`, or create Pods yourself. On a cluster, check its "
        "scheduler and kubelets.",
        (
            Step(
                "kubectl get pods -l app=late",
                r"No resources found",
                before=f"{ALONE}; kubectl create deployment late --image=x --replicas=3",
            ),
            Step(
                "kubectl get deployment late",
                r"late +0/3 +0 +0",
                after=f"kubectl delete deployment late; {STOP}; {START}",
            ),
        ),
        codes=("E2", "R1", "B8"),
    ),
    Symptom(
        "`Forbidden`",
        "No role that is bound to the user allows this. `kubectl auth whoami` shows the user.",
        "Bind a role: the message names user, verb, resource and namespace. "
        "[Access](operations.md#access).",
        (Step("kubectl get endpointslices --as jane", r'Forbidden.*User "jane" cannot list', 1),),
    ),
    Symptom(
        "`Unauthorized`",
        "The token is unknown, has expired, or was signed with a removed key; or the "
        "certificate is of another authority.",
        "Copy the kubeconfig again from the server's data directory, or create a token: "
        "`kubectl create token NAME`.",
        (
            Step(
                "curl -sk https://127.0.0.1:$PORT/api/v1/services -H 'Authorization: Bearer "
                "no-more'",
                r'"code": ?401',
            ),
        ),
    ),
    Symptom(
        "A write is refused: `provided port is already allocated`",
        "Another Service has the node port (or the cluster IP: `provided IP is already "
        "allocated`).",
        "Omit it, and the server chooses one; or find the other Service.",
        (
            Step(
                "kubectl create service nodeport second --tcp=80 --node-port=30080",
                r"provided port is already allocated",
                1,
                before="kubectl create service nodeport first --tcp=80 --node-port=30080",
            ),
            Step(
                "kubectl get services -A -o "
                "custom-columns='NAME:.metadata.name,PORTS:.spec.ports[*].nodePort'"
                " | grep 30080",
                r"first +30080",
            ),
        ),
        codes=("S7",),
    ),
    Symptom(
        "An object is deleted and stays",
        "It has a finalizer. The program that set it must remove it, and does not run or "
        "waits for something.",
        "Start that program again. Only if it is gone for good, remove the finalizer by hand.",
        (
            Step(
                "kubectl delete service first --wait=false",
                r"deleted",
                before=(
                    "kubectl patch service first -p "
                    '\'{"metadata":{"finalizers":["example.com/hold"]}}\''
                ),
            ),
            Step(
                "kubectl get service first -o jsonpath='{.metadata.deletionTimestamp} "
                "{.metadata.finalizers}'",
                r"example\.com/hold",
                after='kubectl patch service first -p \'{"metadata":{"finalizers":null}}\'',
            ),
        ),
        codes=("S11",),
    ),
    Symptom(
        "Writes fail: `the write was not stored`",
        "The disk is full, has an I/O error, or the file was moved away. Reads and "
        "watches go on; nothing of the write is stored.",
        "The message and the check `etcd` name the reason. Free space or put the file "
        "back: writes resume by themselves. Do not restart for a full disk.",
        (
            Step(
                "kubectl create namespace blue",
                r"the write was not stored: .* was removed or replaced",
                1,
                before="mv data/sliceplane.db data/away",
            ),
            Step(
                "kubectl get --raw /livez/etcd",
                r"the write was not stored",
                1,
                after="mv data/away data/sliceplane.db",
            ),
            Step("kubectl create namespace blue", r"namespace/blue created"),
        ),
        codes=("E1",),
    ),
    Symptom(
        "Controllers on a cluster say what they may not read",
        "The ServiceAccount has no role for it.",
        "Apply the roles of the chart or of [controllers alone](operations.md#controllers-alone).",
        (
            Step(
                "sliceplane controllers --once --kubeconfig account.kubeconfig",
                r"does not let us read endpoints, endpointslices",
                1,
                before='kubectl create serviceaccount slices; sed "s/client-certificate.*//; '
                "s/client-key-data.*/token: "
                '$(kubectl create token slices)/" $KUBECONFIG >account.kubeconfig',
            ),
        ),
        codes=("E1", "E2"),
    ),
    Symptom(
        "EndpointSlices are wrong, or another writer changes them",
        "Two controllers write the same slices, or the right one is off. Shadow mode "
        "reports the differences and writes nothing.",
        "Switch the other one off ([hand-over](hand-over.md)). In this example a slice "
        "was deleted while no controller ran.",
        (
            Step(
                "sliceplane controllers --shadow --once",
                r"error +E1 +default/web +not in the slices: web-",
                1,
                before=f"{ALONE}; kubectl delete endpointslice -l kubernetes.io/service-name=web",
            ),
            Step(
                "sliceplane controllers --once --controllers endpointslice-controller",
                r"endpointslice-controller: 1 jobs, 1 writes, 0 failed",
            ),
            Step(
                "sliceplane controllers --shadow --once", r"no difference", after=f"{STOP}; {START}"
            ),
        ),
        codes=("E1", "E3", "E12", "E16"),
    ),
    Symptom(
        "A second process does not start: `process 4711 (sliceplane up) is using it`",
        "A data directory belongs to one process, for example a forgotten one or a "
        "service of systemd.",
        "Use the running one (its kubeconfig is in the directory), or give another `--data-dir`.",
        (Step("sliceplane up --data-dir data", r"process \d+ \(.*\) is using it", 1),),
    ),
    Symptom(
        "It does not start: `address already in use`",
        "Another process listens on the port; `ss -ltnp` shows it.",
        "`--secure-port 0` takes a free one.",
        (Step("sliceplane up --data-dir other --secure-port $PORT", r"address already in use", 1),),
    ),
    Symptom(
        "`connection refused`",
        "No server listens: it was stopped, it has not started yet, or the kubeconfig has"
        " an old port.",
        "Start it. `kubectl config view --minify` shows the address.",
        (
            Step(
                "kubectl get services", r"connection to the server .* was refused", 1, before=STOP
            ),
            Step("sliceplane controllers --once", r"connection refused", 1),
        ),
        codes=("N15", "E2"),
    ),
    Symptom(
        "`certificate signed by unknown authority`",
        "The kubeconfig is older than the server's authority: `pki/` was lost, or "
        "replaced because it was about to expire.",
        "Use the new `admin.kubeconfig`. Back up `pki/` with the database, so that a "
        "restore keeps the authority.",
        (
            Step(
                "kubectl --kubeconfig old.kubeconfig get services",
                r"certificate signed by unknown authority",
                1,
                before=f"cp data/admin.kubeconfig old.kubeconfig; rm -r data/pki; {START}",
                after=STOP,
            ),
        ),
        codes=("N15", "N1"),
    ),
    Symptom(
        "It does not start: the database is damaged",
        "The file's pages do not belong together: a bad disk, or a copy that was made "
        "during a write.",
        "Restore a snapshot, or move the file away and start without data. The file was "
        "not changed, so its data may still be recovered. [Backup and "
        "restore](operations.md#backup-and-restore).",
        (
            Step(
                "sliceplane up --data-dir data --secure-port $PORT",
                r"it is damaged .*; restore it",
                1,
                before=(
                    "dd if=/dev/zero of=data/sliceplane.db bs=4096 seek=1 count=6 conv=notrunc "
                    "status=none"
                ),
            ),
        ),
        codes=("N15",),
    ),
)


class Player:
    """Plays the story in *folder*; *environment* is for its commands."""

    def __init__(self, folder: Path, port: int, **environment: str) -> None:
        self._folder = folder
        self._port = port
        programs = folder / "bin"
        programs.mkdir()
        (programs / "sliceplane").write_text(PROGRAM, encoding="utf-8")
        (programs / "sliceplane").chmod(0o755)
        self._environment = {
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "PORT": str(port),
            "TERM": "dumb",
            "KUBECONFIG": str(folder / "data" / "admin.kubeconfig"),
            **environment,
        }

    def begin(self) -> None:
        self._hidden(START)

    def end(self) -> None:
        self._shell(f"test -f pid && {STOP}; true")

    def play(self, step: Step) -> str:
        """Returns the output once it and the exit code are as expected, without what differs
        between two runs.
        """
        if step.before:
            self._hidden(step.before)

        def is_expected(seen: tuple[str, int]) -> bool:
            said, code = seen
            return code == step.code and re.search(step.says, said, re.MULTILINE) is not None

        said, _ = until(lambda: self._shell(step.line), is_expected)
        if step.after:
            self._hidden(step.after)
        return self._plain(said)

    def shown(self, step: Step) -> str:
        """The line as a person would type it."""
        return step.line.replace("$PORT", "6443").replace(POD_IP, "10.244.1.2")

    def _plain(self, said: str) -> str:
        said = said.replace(str(self._folder), "/home/me").replace(str(self._port), "6443")
        return "\n".join(line.rstrip() for line in said.rstrip().splitlines())

    def _hidden(self, line: str) -> None:
        said, code = self._shell(line)
        assert code == 0, f"{line}\n{said}"

    def _shell(self, line: str) -> tuple[str, int]:
        # A file, not a pipe: what goes on in the background would keep it open.
        out = self._folder / "said"
        environment = {**self._environment, **({"COLUMNS": "80"} if "explain" in line else {})}
        with out.open("wb") as told:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self._folder,
                env=environment,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                timeout=STEP_S,
            )
        return out.read_text(errors="replace"), done.returncode
