"""The walk of one ready Pod: which files and functions run between its status patch and the
kernel's rule.

A plane with a node proxy (``up --proxy``) runs in a network namespace of its own, with a profile of
all its threads. A Pod of a Service turns ready and unready a few times; then what runs while
nothing happens is noted, and then what runs while the Pod turns ready, over a new TLS connection,
until its address is in the kernel. The difference is the walk: request, storage, watches,
EndpointSlices, Endpoints and the other controllers, and the rules of the node.

Chores that come every few seconds may fall into it, so it is done ``WALKS`` times and what is in
all of them counts. Comprehensions are functions to Python 3.11, and count. Run it as root, with
nftables and kubectl:

    python tools/walk.py             # two figures
    python tools/walk.py --list      # and every function, by file
"""

from __future__ import annotations

import argparse
import base64
import collections
import json
import os
import runpy
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
WALKS: Final = 3
IDLE_S: Final = 5.0
PORT: Final = 16443
ADDRESS: Final = "10.244.0.7"
OBJECTS: Final = """
apiVersion: v1
kind: Node
metadata: {name: node-0, labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default, labels: {app: web}}
spec: {nodeName: node-0, containers: [{name: c, image: i}]}
"""


def profiled(folder: Path, arguments: list[str]) -> None:
    """Runs ``sliceplane`` with *arguments*, and notes its functions under the name that the file
    ``phase`` has.
    """
    phase_file = folder / "phase"
    phase = ""
    seen: dict[str, set[str]] = collections.defaultdict(set)

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and phase:
            code = frame.f_code
            _, found, path = code.co_filename.rpartition("/src/sliceplane/")
            if found:
                seen[phase].add(f"{path} {code.co_qualname}")

    def follow() -> None:
        nonlocal phase
        while True:
            phase = phase_file.read_text()
            if phase == "end":
                phase = ""
                (folder / "seen.new").write_text(
                    json.dumps({name: sorted(calls) for name, calls in seen.items()})
                )
                (folder / "seen.new").rename(folder / "seen")
                return
            time.sleep(0.002)

    threading.Thread(target=follow, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)
    sys.argv = ["sliceplane", *arguments]
    runpy.run_module("sliceplane", run_name="__main__")


def enter(folder: Path, phase: str) -> None:
    (folder / "phase.new").write_text(phase)
    (folder / "phase.new").rename(folder / "phase")
    time.sleep(0.1)


def patch_status(kubeconfig: Path, *, ready: bool) -> None:
    """Over a connection of its own, with the administrator's certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    user = config["users"][0]["user"]
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    shown = kubeconfig.with_name("shown.pem")
    shown.write_bytes(
        b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
    )
    context.load_cert_chain(shown)
    condition = {"type": "Ready", "status": str(ready)}
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [condition],
    }
    request = urllib.request.Request(
        f"{cluster['server']}/api/v1/namespaces/default/pods/p/status",
        json.dumps({"status": status}).encode(),
        {"Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    urllib.request.urlopen(request, context=context).read()


def until(present: bool) -> None:
    """Waits until the kernel leads to the Pod, or does not."""
    for _ in range(2000):
        rules = subprocess.run(
            ["nft", "list", "ruleset"], capture_output=True, text=True, check=True
        ).stdout
        if (ADDRESS in rules) is present:
            return
        time.sleep(0.01)
    raise SystemExit(f"the kernel's rules did not follow the Pod (ready: {present})")


def walk(folder: Path) -> set[str]:
    data = folder / "data"
    flags = [
        "--data-dir",
        str(data),
        "--secure-port",
        str(PORT),
        "--proxy",
        "--hostname-override",
        "node-0",
    ]
    (folder / "phase").write_text("")
    kubeconfig = data / "admin.kubeconfig"
    with (folder / "log").open("w") as log:
        command = [sys.executable, __file__, "--profiled", str(folder), "--", "up", *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        plane = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        kubectl = ["kubectl", "--kubeconfig", str(kubeconfig), "apply", "-f", "-"]
        while subprocess.run(
            kubectl, input=OBJECTS, text=True, capture_output=True, check=False
        ).returncode:
            if plane.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.2)
        for ready in (True, False, True, False):
            patch_status(kubeconfig, ready=ready)
            until(ready)
        time.sleep(2 * IDLE_S)
        enter(folder, "idle")
        time.sleep(IDLE_S)
        for number in range(WALKS):
            enter(folder, f"walk {number}")
            patch_status(kubeconfig, ready=True)
            until(True)
            time.sleep(0.3)
            enter(folder, "")
            patch_status(kubeconfig, ready=False)
            until(False)
            time.sleep(IDLE_S)
        enter(folder, "end")
        while not (folder / "seen").exists():
            time.sleep(0.1)
    finally:
        plane.terminate()
        plane.wait()
    seen = {phase: set(calls) for phase, calls in json.loads((folder / "seen").read_text()).items()}
    return set.intersection(*(seen[f"walk {number}"] for number in range(WALKS))) - seen["idle"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every function, by file")
    parser.add_argument("--profiled", help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profiled:
        profiled(Path(options.profiled), options.arguments)
        return
    if not options.inside:
        command = [
            "unshare",
            "--net",
            sys.executable,
            __file__,
            "--inside",
            *(["--list"] if options.list else []),
        ]
        raise SystemExit(subprocess.run(command, check=False).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", "10.9.0.1/24", "dev", "lo"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        functions = walk(Path(folder))
    by_file: dict[str, list[str]] = collections.defaultdict(list)
    for function in sorted(functions):
        path, _, name = function.partition(" ")
        by_file[path].append(name)
    if options.list:
        for path, names in by_file.items():
            print(path, *names, sep="\n    ")
    print(f"{len(by_file)} files, {len(functions)} functions")


if __name__ == "__main__":
    main()
