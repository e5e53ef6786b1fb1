"""Follow the EndpointSlices of one Service with one library, as ``sliceplane conformance --run program:`` wants it.

    sliceplane conformance --run "program:python consume.py LIBRARY"

Run in an environment that has the library.  Each consumer is what the library's documentation leads to: its own cache
where it has one, else the loop that it shows, with a second's pause after an error.  What is believed is the same for
all: of the slices held, each ready endpoint at the asked port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

NAMESPACE = os.environ["SLICEPLANE_NAMESPACE"]
SELECTOR = f"kubernetes.io/service-name={os.environ['SLICEPLANE_SERVICE']}"
PORT = os.environ["SLICEPLANE_PORT"]
FAMILY = os.environ["SLICEPLANE_FAMILY"]
PAUSE_S = 1.0
LOOK_S = 0.02


def authorities(slices: Iterable[dict[str, Any]]) -> list[str]:
    """Of slices as documents of JSON."""
    believed = set()
    for document in slices:
        if document.get("addressType") != FAMILY:
            continue
        for port in document.get("ports") or ():
            if (port.get("name") or "") != PORT or port.get("protocol", "TCP") != "TCP":
                continue
            for endpoint in document.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready") in (None, True):
                    address = endpoint["addresses"][0]
                    believed.add(f"[{address}]:{port['port']}" if FAMILY == "IPv6" else f"{address}:{port['port']}")
    return sorted(believed)


class Held:
    """Slices by name, as events say; a router that only watches begins with none."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}

    def event(self, kind: str, document: dict[str, Any]) -> None:
        name = document["metadata"]["name"]
        if kind == "DELETED":
            self.slices.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            self.slices[name] = document

    def listed(self, documents: Iterable[dict[str, Any]]) -> None:
        self.slices = {document["metadata"]["name"]: document for document in documents}

    def held(self) -> list[dict[str, Any]]:
        return list(self.slices.copy().values())


def official_informer() -> Callable[[], list[dict[str, Any]]]:
    """Its cache, which is asked all the time."""
    from kubernetes import client, config
    from kubernetes.informer import SharedInformer

    config.load_kube_config(os.environ["KUBECONFIG"])
    api = client.DiscoveryV1Api()
    informer = SharedInformer(api.list_namespaced_endpoint_slice, namespace=NAMESPACE, label_selector=SELECTOR)
    informer.start()
    plain = client.ApiClient().sanitize_for_serialization

    def held() -> list[dict[str, Any]]:
        return [plain(item) for item in informer.cache.list()]

    return held


def official_watch() -> Callable[[], list[dict[str, Any]]]:
    """The loop of most routers: watch for ever, and again after an error."""
    from kubernetes import client, config, watch

    config.load_kube_config(os.environ["KUBECONFIG"])
    api = client.DiscoveryV1Api()
    held = Held()

    def loop() -> None:
        while True:
            try:
                stream = watch.Watch().stream(
                    api.list_namespaced_endpoint_slice, namespace=NAMESPACE, label_selector=SELECTOR
                )
                for event in stream:
                    held.event(event["type"], event["raw_object"])
            except Exception as error:
                print(f"watch: {error}", file=sys.stderr)
                time.sleep(PAUSE_S)

    threading.Thread(target=loop, daemon=True).start()
    return held.held


def lightkube_loop() -> Callable[[], list[dict[str, Any]]]:
    """List, watch from the list's version, retry; and list again after 410 Gone, for a retry would go on without what
    was deleted meanwhile."""
    from lightkube import ApiError, Client, KubeConfig
    from lightkube.resources.discovery_v1 import EndpointSlice
    from lightkube.types import OnErrorAction, OnErrorResult

    client = Client(config=KubeConfig.from_file(os.environ["KUBECONFIG"]), namespace=NAMESPACE)
    labels = {"kubernetes.io/service-name": os.environ["SLICEPLANE_SERVICE"]}
    held = Held()

    def retry(error: Exception, _: int) -> OnErrorResult:
        if isinstance(error, ApiError) and error.status.code == 410:
            return OnErrorResult(OnErrorAction.RAISE)
        return OnErrorResult(OnErrorAction.RETRY, sleep=PAUSE_S)

    def loop() -> None:
        while True:
            try:
                slices = client.list(EndpointSlice, labels=labels)
                held.listed(item.to_dict() for item in slices)
                version = slices.resourceVersion
                for kind, item in client.watch(EndpointSlice, labels=labels, resource_version=version, on_error=retry):
                    held.event(kind, item.to_dict())
            except Exception as error:
                print(f"watch: {error}", file=sys.stderr)
                time.sleep(PAUSE_S)

    threading.Thread(target=loop, daemon=True).start()
    return held.held


def kr8s_watch() -> Callable[[], list[dict[str, Any]]]:
    held = Held()

    async def loop() -> None:
        import kr8s.asyncio
        from kr8s.asyncio.objects import new_class

        kind_of = new_class("EndpointSlice", "discovery.k8s.io/v1", namespaced=True, plural="endpointslices")
        while True:
            try:
                api = await kr8s.asyncio.api(kubeconfig=os.environ["KUBECONFIG"], namespace=NAMESPACE)
                async for kind, item in api.async_watch(kind_of, namespace=NAMESPACE, label_selector=SELECTOR):
                    held.event(kind, item.raw.to_dict() if hasattr(item.raw, "to_dict") else dict(item.raw))
            except Exception as error:
                print(f"watch: {type(error).__name__} {error}", file=sys.stderr)
            await asyncio.sleep(PAUSE_S)

    threading.Thread(target=lambda: asyncio.run(loop()), daemon=True).start()
    return held.held


CONSUMERS = {
    "kubernetes-informer": official_informer,
    "kubernetes-watch": official_watch,
    "lightkube": lightkube_loop,
    "kr8s": kr8s_watch,
}


def main() -> None:
    held = CONSUMERS[sys.argv[1]]()
    last: list[str] | None = None
    while True:
        slices = None
        with contextlib.suppress(RuntimeError):  # a dict that another thread changes meanwhile
            slices = held()
        if slices is not None and (believed := authorities(slices)) != last:
            last = believed
            print(json.dumps(believed), flush=True)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
