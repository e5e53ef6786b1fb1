"""Follow the EndpointSlices of one Service with one library, as ``sliceplane conformance --run
program:`` wants it.

    sliceplane conformance --run "program:python consume.py LIBRARY"

Run in an environment that has the library. A library that has a cache is judged by it. One that
leaves the loop to its user is judged twice: by the loop that its documentation shows, begun again
after an error (``...-watch``), and by the best that a careful user can write on it, which lists,
replaces what it holds, watches from the list's version, and lists again whenever the watch ends
(``...-list-watch``). After an error each waits a second. What is believed is the same for all: of
the slices held, each ready endpoint at the asked port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

NAMESPACE = os.environ["SLICEPLANE_NAMESPACE"]
LABELS = {"kubernetes.io/service-name": os.environ["SLICEPLANE_SERVICE"]}
SELECTOR = f"kubernetes.io/service-name={LABELS['kubernetes.io/service-name']}"
PORT = os.environ["SLICEPLANE_PORT"]
FAMILY = os.environ["SLICEPLANE_FAMILY"]
PAUSE_S = 1.0
#: after which a careful user lists again, whatever the library believes of its watch
WATCH_S = 10
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
                    believed.add(
                        f"[{address}]:{port['port']}"
                        if FAMILY == "IPv6"
                        else f"{address}:{port['port']}"
                    )
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


HeldSlices = Callable[[], list[dict[str, Any]]]


def for_ever(once: Callable[[], None]) -> None:
    """In a thread of its own, again and again."""

    def loop() -> None:
        while True:
            try:
                once()
            except Exception as error:
                print(f"watch: {type(error).__name__} {error}", file=sys.stderr)
                time.sleep(PAUSE_S)

    threading.Thread(target=loop, daemon=True).start()


def for_ever_async(once: Callable[[], Awaitable[None]]) -> None:
    async def loop() -> None:
        while True:
            try:
                await once()
            except Exception as error:
                print(f"watch: {type(error).__name__} {error}", file=sys.stderr)
                await asyncio.sleep(PAUSE_S)

    threading.Thread(target=lambda: asyncio.run(loop()), daemon=True).start()


def official_informer() -> HeldSlices:
    """Its cache, which is asked all the time."""
    from kubernetes import client, config
    from kubernetes.informer import SharedInformer

    config.load_kube_config(os.environ["KUBECONFIG"])
    api = client.DiscoveryV1Api()
    informer = SharedInformer(
        api.list_namespaced_endpoint_slice, namespace=NAMESPACE, label_selector=SELECTOR
    )
    informer.start()
    plain = client.ApiClient().sanitize_for_serialization

    def held() -> list[dict[str, Any]]:
        return [plain(item) for item in informer.cache.list()]

    return held


def official_watch() -> HeldSlices:
    """As the examples of its README and of ``Watch.stream`` have it."""
    from kubernetes import client, config, watch

    config.load_kube_config(os.environ["KUBECONFIG"])
    list_slices = client.DiscoveryV1Api().list_namespaced_endpoint_slice
    held = Held()

    def once() -> None:
        for event in watch.Watch().stream(
            list_slices, namespace=NAMESPACE, label_selector=SELECTOR
        ):
            held.event(event["type"], event["raw_object"])

    for_ever(once)
    return held.held


def official_list_watch() -> HeldSlices:
    """The server ends each watch soon, for ``Watch`` goes on by itself where it was cut, and with
    ``timeout_seconds`` it does not."""
    from kubernetes import client, config, watch

    config.load_kube_config(os.environ["KUBECONFIG"])
    list_slices = client.DiscoveryV1Api().list_namespaced_endpoint_slice
    plain = client.ApiClient().sanitize_for_serialization
    held = Held()

    def once() -> None:
        slices = list_slices(NAMESPACE, label_selector=SELECTOR)
        held.listed(plain(item) for item in slices.items)
        for event in watch.Watch().stream(
            list_slices,
            namespace=NAMESPACE,
            label_selector=SELECTOR,
            resource_version=slices.metadata.resource_version,
            timeout_seconds=WATCH_S,
        ):
            held.event(event["type"], event["raw_object"])

    for_ever(once)
    return held.held


def lightkube_watch() -> HeldSlices:
    """Its page "List-Watch pattern" with its ``on_error_retry``."""
    from lightkube import Client, KubeConfig
    from lightkube.resources.discovery_v1 import EndpointSlice
    from lightkube.types import OnErrorAction, OnErrorResult

    client = Client(config=KubeConfig.from_file(os.environ["KUBECONFIG"]), namespace=NAMESPACE)
    held = Held()

    def retry(_: Exception, __: int) -> OnErrorResult:
        return OnErrorResult(OnErrorAction.RETRY, sleep=PAUSE_S)

    def once() -> None:
        slices = client.list(EndpointSlice, labels=LABELS)
        for item in slices:
            held.event("ADDED", item.to_dict())
        version = slices.resourceVersion
        for kind, item in client.watch(
            EndpointSlice, labels=LABELS, resource_version=version, on_error=retry
        ):
            held.event(kind, item.to_dict())

    for_ever(once)
    return held.held


def lightkube_list_watch() -> HeldSlices:
    """Its own retry is used for all errors but 410 Gone, for after that one it goes on without what
    was deleted.
    """
    from lightkube import ApiError, Client, KubeConfig
    from lightkube.resources.discovery_v1 import EndpointSlice
    from lightkube.types import OnErrorAction, OnErrorResult

    client = Client(config=KubeConfig.from_file(os.environ["KUBECONFIG"]), namespace=NAMESPACE)
    held = Held()

    def retry(error: Exception, _: int) -> OnErrorResult:
        if isinstance(error, ApiError) and error.status.code == 410:
            return OnErrorResult(OnErrorAction.RAISE)
        return OnErrorResult(OnErrorAction.RETRY, sleep=PAUSE_S)

    def once() -> None:
        slices = client.list(EndpointSlice, labels=LABELS)
        held.listed(item.to_dict() for item in slices)
        version = slices.resourceVersion
        for kind, item in client.watch(
            EndpointSlice, labels=LABELS, resource_version=version, on_error=retry
        ):
            held.event(kind, item.to_dict())

    for_ever(once)
    return held.held


async def kr8s_api() -> Any:
    import kr8s.asyncio

    return await kr8s.asyncio.api(kubeconfig=os.environ["KUBECONFIG"], namespace=NAMESPACE)


def kr8s_kind() -> Any:
    from kr8s.asyncio.objects import new_class

    return new_class(
        "EndpointSlice", "discovery.k8s.io/v1", namespaced=True, plural="endpointslices"
    )


def kr8s_watch() -> HeldSlices:
    kind_of = kr8s_kind()
    held = Held()

    async def once() -> None:
        api = await kr8s_api()
        async for kind, item in api.async_watch(
            kind_of, namespace=NAMESPACE, label_selector=SELECTOR
        ):
            held.event(kind, kr8s_document(item))
        await asyncio.sleep(PAUSE_S)

    for_ever_async(once)
    return held.held


def kr8s_list_watch() -> HeldSlices:
    """Its lists have no version, so the request is made by ``async_get_kind``. After 410 Gone its
    watch asks for the same version for ever; a limit of time ends that.
    """
    kind_of = kr8s_kind()
    held = Held()

    async def once() -> None:
        api = await kr8s_api()
        async with api.async_get_kind(kind_of, namespace=NAMESPACE, label_selector=SELECTOR) as (
            _,
            answer,
        ):
            slices = answer.json()
        held.listed(slices["items"])
        version = slices["metadata"]["resourceVersion"]
        watch = api.async_watch(
            kind_of, namespace=NAMESPACE, label_selector=SELECTOR, since=version
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_S):
                async for kind, item in watch:
                    held.event(kind, kr8s_document(item))

    for_ever_async(once)
    return held.held


def kr8s_document(item: Any) -> dict[str, Any]:
    return item.raw.to_dict() if hasattr(item.raw, "to_dict") else dict(item.raw)


CONSUMERS = {
    "kubernetes-informer": official_informer,
    "kubernetes-watch": official_watch,
    "kubernetes-list-watch": official_list_watch,
    "lightkube-watch": lightkube_watch,
    "lightkube-list-watch": lightkube_list_watch,
    "kr8s-watch": kr8s_watch,
    "kr8s-list-watch": kr8s_list_watch,
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
