"""The story of the demo, step by step.  Exit code 0 only if everything that it shows came out as it
must.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from demo.agent import Agent
from demo.net import Host, Net
from demo.plane import DemoError, Plane

MANIFEST = Path(__file__).with_name("manifest.yaml")
SEARCH = "default.svc.cluster.local svc.cluster.local cluster.local"
CLIENT = Path(__file__).with_name("client.py")
SLICES = ("get", "endpointslice", "-l", "kubernetes.io/service-name=demo-svc", "-o")
NEAR_REQUESTS = 1000
# Random choice spreads as the square root: 4,000 a client make 10% more than four standard
# deviations.
SPREAD_REQUESTS = 4000
SPREAD_TOLERANCE = 0.10
SETTLE_S = 20.0


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def missing_for_packets() -> list[str]:
    missing = [] if os.geteuid() == 0 else ["root"]
    return missing + [program for program in ("nft", "ip") if shutil.which(program) is None]


def launch(host: Host, address: str, count: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        host.command(sys.executable, str(CLIENT), address, "80", count),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def requests(clients: dict[str, Host], address: str, count: int) -> dict[str, Counter[str]]:
    """Every client sends *count* requests, side by side.  Raises ``DemoError`` if one of them
    fails.
    """
    running = {node: launch(host, address, str(count)) for node, host in clients.items()}
    answers: dict[str, Counter[str]] = {}
    for node, process in running.items():
        result = json.loads(process.communicate()[0])
        if result["failed"]:
            raise DemoError(
                f"{result['failed']} of {count} requests from {node} failed: {result['errors']}"
            )
        answers[node] = Counter(result["answers"])
    return answers


def pods(plane: Plane) -> dict[str, str]:
    """Zone of each Pod that is not on its way out."""
    listed = json.loads(plane.kubectl("get", "pods", "-l", "app=demo-app", "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: Plane.NODES[pod["spec"]["nodeName"]]
        for pod in listed
        if not pod["metadata"].get("deletionTimestamp")
    }


def print_table(answers: dict[str, Counter[str]], zones: dict[str, str]) -> None:
    """Zone of the client by backend."""
    columns = sorted(zones, key=lambda pod: (zones[pod], pod))
    width = max(len(name) for name in columns)
    print(f"{'client zone':<12}" + "".join(f"  {name:>{width}}" for name in columns) + "     total")
    print(f"{'':<12}" + "".join(f"  {'(' + zones[name] + ')':>{width}}" for name in columns))
    for node, counts in answers.items():
        cells = "".join(f"  {counts.get(name, 0):>{width}}" for name in columns)
        print(f"{Plane.NODES[node]:<12}{cells}  {counts.total():>8}")


def until(what: str, holds: object) -> None:
    """Ask *holds()* until it is true.  Raises ``DemoError`` after ``SETTLE_S``."""
    assert callable(holds)
    deadline = time.monotonic() + SETTLE_S
    while not holds():
        if time.monotonic() > deadline:
            raise DemoError(f"not within {SETTLE_S:.0f} s: {what}")
        time.sleep(0.05)


def show_near(plane: Plane, clients: dict[str, Host], address: str) -> None:
    step(
        f"{NEAR_REQUESTS} requests from each client to http://{address}: PreferSameZone keeps "
        "them in the zone"
    )

    def near() -> bool:
        with contextlib.suppress(DemoError):
            zones = pods(plane)
            tried = requests(clients, address, 20)
            return all(
                zones.get(pod) == Plane.NODES[node]
                for node, pods_ in tried.items()
                for pod in pods_
            )
        return False

    until("both nodes route to backends of their own zone", near)
    zones = pods(plane)
    answers = requests(clients, address, NEAR_REQUESTS)
    print_table(answers, zones)
    strayed = sum(
        n
        for node, counts in answers.items()
        for pod, n in counts.items()
        if zones[pod] != Plane.NODES[node]
    )
    print(f"answered by another zone: {strayed}")
    if strayed:
        raise DemoError(f"{strayed} requests left their zone")


def show_names(clients: dict[str, Host], address: str) -> None:
    step("the same by name, with nothing but what every Pod has in /etc/resolv.conf")
    for node, host in clients.items():
        command = host.command("getent", "ahostsv4", "demo-svc")
        found = ""

        def resolves(command: list[str] = command) -> bool:
            nonlocal found
            found = subprocess.run(command, check=False, capture_output=True, text=True).stdout
            return address in found

        until(f"demo-svc is {address} on {node}", resolves)
        print(f"{node}: getent ahostsv4 demo-svc: {found.split(maxsplit=1)[0]}")
    answers = requests(clients, "demo-svc", 20)
    print(f"answered at http://demo-svc: {sum(counts.total() for counts in answers.values())}")


def show_drain(plane: Plane, clients: dict[str, Host], address: str) -> None:
    zones = pods(plane)
    victim = sorted(zones)[0]
    step(f"kubectl delete pod {victim}, while both clients go on")
    running = {node: launch(host, address, "forever") for node, host in clients.items()}
    time.sleep(0.5)
    started = time.monotonic()
    print(plane.kubectl("delete", "pod", victim).strip())
    print(f"gone after {time.monotonic() - started:.1f} s of draining")
    plane.kubectl("rollout", "status", "deployment/demo", "--timeout=60s")
    time.sleep(0.5)
    failed = 0
    total = 0
    for node, process in running.items():
        result = json.loads(process.communicate()[0])
        failed += result["failed"]
        total += result["failed"] + sum(result["answers"].values())
        for error in result["errors"]:
            print(f"  {node}: {error}")
    print(f"requests sent meanwhile: {total}, failed: {failed}")
    if failed:
        raise DemoError(f"{failed} requests failed while a Pod drained")


def show_spread(plane: Plane, clients: dict[str, Host], address: str) -> None:
    step("remove trafficDistribution: traffic spreads over both zones again")
    patch = '[{"op":"remove","path":"/spec/trafficDistribution"}]'
    print(plane.kubectl("patch", "service", "demo-svc", "--type=json", "-p", patch).strip())

    def spread() -> bool:
        zones = pods(plane)
        tried = requests(clients, address, 40)
        return all(
            {zones.get(pod) for pod in counts} >= set(Plane.NODES.values())
            for counts in tried.values()
        )

    until("both nodes route to both zones", spread)
    zones = pods(plane)
    answers = requests(clients, address, SPREAD_REQUESTS)
    print_table(answers, zones)
    totals = sum(answers.values(), Counter[str]())
    fair = totals.total() / len(zones)
    worst = max(abs(totals[pod] - fair) / fair for pod in zones)
    print(f"largest deviation of a backend from an equal share: {worst:.1%}")
    if worst > SPREAD_TOLERANCE:
        raise DemoError(f"a backend deviates by {worst:.1%} from an equal share")


def story() -> None:
    missing = missing_for_packets()
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(Plane())
        step("sliceplane up --emulate --emulate-nodes 2 --zones zone-a,zone-b")
        up = plane.start(external_readiness=not missing)
        print(f"{up.ready_line}  ({up.start_s:.2f} s)")
        clients: dict[str, Host] = {}
        if not missing:
            net = stack.enter_context(Net())
            for index, node in enumerate(Plane.NODES, 1):
                addresses = (f"10.244.200.{index}/16", f"fd00:10:244:c8::{index}/48")
                clients[node] = net.add_host(node, addresses)
                clients[node].resolve_with(plane.NAMES, SEARCH)
                proxy = plane.start_proxy(node, clients[node].namespace)
                stack.callback(proxy.stop)  # before its namespace goes
                print(f"proxy of {node} ({Plane.NODES[node]}): {proxy.ready_line}")
            agent = Agent(plane, net)
            stack.callback(agent.close)

        step("kubectl apply -f demo/manifest.yaml")
        print(plane.kubectl("apply", "-f", str(MANIFEST)).strip())
        print(plane.kubectl("rollout", "status", "deployment/demo", "--timeout=60s").strip())
        print(plane.kubectl("get", "service,deployment,pods", "-o", "wide").rstrip())

        step("kubectl get endpointslice -l kubernetes.io/service-name=demo-svc -o yaml")
        print(plane.kubectl(*SLICES, "yaml").rstrip())

        if missing:
            step("no packets this time")
            print(
                f"missing: {', '.join(missing)}. Left out: the network namespaces, the node "
                "proxies, real requests, the"
            )
            print(
                "drain and the spread of traffic. As root on Debian, `make demo` installs what it "
                "needs."
            )
            return
        address = plane.kubectl("get", "service", "demo-svc", "-o", "jsonpath={.spec.clusterIP}")
        show_near(plane, clients, address)
        show_names(clients, address)
        show_drain(plane, clients, address)
        show_spread(plane, clients, address)
        if agent.problems:
            raise DemoError(agent.problems[0])


def main() -> None:
    started = time.monotonic()
    try:
        story()
    except DemoError as error:
        print(f"\ndemo failed: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    print(f"\nall removed again; the demo took {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
