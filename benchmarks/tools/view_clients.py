"""A client that follows one Service, in a process of its own: ``python -m
benchmarks.tools.view_clients WHO KUBECONFIG NAMESPACE SERVICE CHANGES``.

Prints ``synced SECONDS BYTES ENDPOINTS`` after the first list (seconds from the request on,
resident bytes that it took), then takes CHANGES changes of one endpoint each and prints ``changed
CPU_SECONDS``.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path
from typing import Any

LABEL = "kubernetes.io/service-name"


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def tell_synced(began: float, before: int, endpoints: int) -> None:
    seconds = time.monotonic() - began
    gc.collect()
    print(f"synced {seconds} {resident_bytes() - before} {endpoints}", flush=True)


async def ours(kubeconfig: str, namespace: str, service: str, changes: int) -> None:
    from sliceplane.client import EndpointSlices, EndpointView, connect

    async with connect(kubeconfig) as client:
        # Modules, TLS and the connection are there before the measurement, as with the other.
        await client.list(EndpointSlices, namespace=namespace, limit=1)
        before = resident_bytes()
        began = time.monotonic()
        async with EndpointView(client, service, namespace, port="http") as view:
            picker = view.round_robin()
            await view.wait_ready(120)
            tell_synced(began, before, len(view.usable))
            spent = time.process_time()
            seen = -1
            async for change in view:
                if seen < 0:  # what there is
                    spent = time.process_time()
                    seen = 0
                    print("following", flush=True)
                    continue
                seen += len(change.updated)
                picker.pick()
                if seen >= changes:
                    break
            print(f"changed {time.process_time() - spent}", flush=True)


def official(kubeconfig: str, namespace: str, service: str, changes: int) -> None:
    """List in pages, watch from the list's version, keep the slices and an index by Pod: typed
    models throughout.
    """
    from kubernetes import client, config, watch

    config.load_kube_config(kubeconfig)
    api = client.DiscoveryV1Api()
    selector = f"{LABEL}={service}"
    api.list_namespaced_endpoint_slice(namespace, label_selector=selector, limit=1)
    before = resident_bytes()
    began = time.monotonic()
    slices: dict[str, Any] = {}
    endpoints: dict[str, Any] = {}

    def put(item: Any) -> None:
        old = slices.get(item.metadata.name)
        for endpoint in (old.endpoints or ()) if old is not None else ():
            endpoints.pop(endpoint.target_ref.uid, None)
        slices[item.metadata.name] = item
        for endpoint in item.endpoints or ():
            endpoints[endpoint.target_ref.uid] = endpoint

    token = None
    version = ""
    while True:
        page = api.list_namespaced_endpoint_slice(
            namespace, label_selector=selector, limit=500, _continue=token
        )
        for item in page.items:
            put(item)
        token = page.metadata._continue
        version = page.metadata.resource_version
        if not token:
            break
    tell_synced(began, before, len(endpoints))
    print("following", flush=True)
    spent = time.process_time()
    following = watch.Watch().stream(
        api.list_namespaced_endpoint_slice,
        namespace,
        label_selector=selector,
        resource_version=version,
    )
    for _ in range(changes):
        put(next(following)["object"])
    print(f"changed {time.process_time() - spent}", flush=True)


def main() -> None:
    who, kubeconfig, namespace, service, changes = sys.argv[1:]
    if who == "ours":
        asyncio.run(ours(kubeconfig, namespace, service, int(changes)))
    else:
        official(kubeconfig, namespace, service, int(changes))


if __name__ == "__main__":
    main()
