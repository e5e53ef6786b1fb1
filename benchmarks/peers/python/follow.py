"""Follow Pods with one library and say at the end what its handlers made of it.

Run by ``benchmarks.informers`` in an environment that has the library::

    python follow.py LIBRARY SECONDS '{"scenario": port, ...}'

Each follower keeps what its events say: ADDED and MODIFIED put, DELETED takes away, as every router
does it. Where a library leaves the loop to its user, the loop is what its documentation shows, with
a second's pause after an error. One JSON object comes out: scenario -> {"held": {name: [uid,
generation]}, "store": the same or null, "deletes": [uid]}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
import time
from importlib.metadata import version
from typing import Any

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}
PAUSE_S = 1.0


class Held:
    """What events said."""

    def __init__(self) -> None:
        self.state: dict[str, tuple[str, int]] = {}
        self.deletes: list[str] = []
        self.store: Any = None

    def put(self, name: str, uid: str, labels: dict[str, str]) -> None:
        self.state[name] = (uid, int(labels["generation"]))

    def drop(self, name: str, uid: str) -> None:
        self.deletes.append(uid)
        self.state.pop(name, None)

    def event(self, kind: str, name: str, uid: str, labels: dict[str, str]) -> None:
        if kind == "DELETED":
            self.drop(name, uid)
        elif kind in ("ADDED", "MODIFIED"):
            self.put(name, uid, labels)

    def report(self) -> dict[str, Any]:
        store = self.store() if self.store is not None else None
        return {"held": self.state, "store": store, "deletes": self.deletes}


def configured(port: int) -> dict[str, Any]:
    return {
        **KUBECONFIG,
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
    }


# The official client


def _core_v1(port: int) -> Any:
    from kubernetes import client, config

    return client.CoreV1Api(config.new_client_from_config_dict(configured(port)))


def kubernetes_informer(port: int, held: Held) -> None:
    from kubernetes.informer import SharedInformer

    informer = SharedInformer(_core_v1(port).list_namespaced_pod, namespace="default")
    for kind in ("ADDED", "MODIFIED", "DELETED"):

        def handle(pod: Any, kind: str = kind) -> None:
            held.event(kind, pod.metadata.name, pod.metadata.uid, pod.metadata.labels)

        informer.add_event_handler(kind, handle)

    def store() -> dict[str, Any]:
        pods = informer.cache.list()
        return {
            pod.metadata.name: (pod.metadata.uid, int(pod.metadata.labels["generation"]))
            for pod in pods
        }

    held.store = store
    informer.start()


def kubernetes_watch(port: int, held: Held) -> None:
    """The loop of most routers: watch for ever, and again after an error."""
    from kubernetes import watch

    api = _core_v1(port)

    def loop() -> None:
        while True:
            try:
                for event in watch.Watch().stream(api.list_namespaced_pod, namespace="default"):
                    metadata = event["object"].metadata
                    held.event(event["type"], metadata.name, metadata.uid, metadata.labels)
            except Exception as error:
                logging.warning("watch: %s", error)
                time.sleep(PAUSE_S)

    threading.Thread(target=loop, daemon=True).start()


# lightkube


def lightkube_loop(port: int, held: Held) -> None:
    """List, watch from the list's version, retry; and from the start after an error that is not
    retried.
    """
    from lightkube import Client, KubeConfig
    from lightkube.resources.core_v1 import Pod
    from lightkube.types import OnErrorAction, OnErrorResult

    client = Client(config=KubeConfig.from_dict(configured(port)), namespace="default")

    def retry(*_: object) -> OnErrorResult:
        return OnErrorResult(OnErrorAction.RETRY, sleep=PAUSE_S)

    def loop() -> None:
        while True:
            try:
                pods = client.list(Pod)
                for pod in pods:
                    held.put(pod.metadata.name, pod.metadata.uid, pod.metadata.labels)
                for kind, pod in client.watch(
                    Pod, resource_version=pods.resourceVersion, on_error=retry
                ):
                    held.event(kind, pod.metadata.name, pod.metadata.uid, pod.metadata.labels)
            except Exception as error:
                logging.warning("watch: %s", error)
                time.sleep(PAUSE_S)

    threading.Thread(target=loop, daemon=True).start()


# kr8s


def kr8s_watch(port: int, held: Held) -> None:
    async def loop() -> None:
        import kr8s.asyncio
        from kr8s.asyncio.objects import Pod

        while True:
            try:
                api = await kr8s.asyncio.api(url=f"http://127.0.0.1:{port}", namespace="default")
                async for kind, pod in api.async_watch(Pod, namespace="default"):
                    metadata = pod.raw["metadata"]
                    held.event(kind, metadata["name"], metadata["uid"], dict(metadata["labels"]))
            except Exception as error:
                logging.warning("watch: %s %s", type(error), error)
            await asyncio.sleep(PAUSE_S)

    threading.Thread(target=lambda: asyncio.run(loop()), daemon=True).start()


# Ours


def sliceplane_informer(port: int, held: Held) -> None:
    from sliceplane.client import Change, Connection, HttpClient, Informer, Pod, Pods
    from sliceplane.watch.io.connection import Fixed

    def handle(changes: tuple[Change[Pod], ...]) -> None:
        for change in changes:
            metadata = change.object.metadata
            if change.new is None:
                held.drop(metadata.name, metadata.uid)
            else:
                held.put(metadata.name, metadata.uid, metadata.labels or {})

    async def loop() -> None:
        address = Connection(
            server=f"http://127.0.0.1:{port}", ssl_context=None, credentials=Fixed()
        )
        # Bookmarks come every second here; the default, 90 s, is for servers that send one a
        # minute.
        informer = Informer(
            HttpClient(address), Pods, kind=Pod, namespace="default", idle_timeout_s=5.0
        )
        informer.add_handler(handle)

        def store() -> dict[str, Any]:
            return {
                each.metadata.name: (
                    each.metadata.uid,
                    int((each.metadata.labels or {})["generation"]),
                )
                for each in informer
            }

        held.store = store
        async with informer:
            await asyncio.sleep(3600)

    threading.Thread(target=lambda: asyncio.run(loop()), daemon=True).start()


FOLLOWERS = {
    "sliceplane": ("sliceplane", sliceplane_informer),
    "kubernetes informer": ("kubernetes", kubernetes_informer),
    "kubernetes Watch loop": ("kubernetes", kubernetes_watch),
    "lightkube": ("lightkube", lightkube_loop),
    "kr8s": ("kr8s", kr8s_watch),
}


def main() -> None:
    library = sys.argv[1]
    seconds = float(sys.argv[2])
    ports = json.loads(sys.argv[3])
    distribution, follow = FOLLOWERS[library]
    found = {name: Held() for name in ports}
    for name, port in ports.items():
        follow(port, found[name])
    time.sleep(seconds)
    told = {name: held.report() for name, held in found.items()}
    installed = ""
    with contextlib.suppress(Exception):
        installed = version(distribution)
    print(json.dumps({"version": installed, "followers": told}), flush=True)


if __name__ == "__main__":
    main()
    # Threads of libraries may never end.
    sys.stdout.flush()
    import os

    os._exit(0)
