"""Terminating Namespaces: deletes their content, reports progress, and finalizes them.

Every object of a terminating namespace is deleted, with its uid as precondition: first the Pods,
and then everything else (KEP-5080). If the server rejects a deletion (because of a webhook or a
missing permission, for example), a condition reports it, and it is retried after all other
deletions that are due. So it delays only the namespace, and if it is a Pod, the objects after Pods.
The controller waits for objects with finalizers. When the caches have shown the namespace empty for
``QUIET_S`` (they lag behind each other, but nothing new can be created by then),
``spec.finalizers`` is emptied through the finalize subresource, which removes the namespace.

An object of a deleted namespace that appears afterwards is deleted as well. But caches lag behind
each other, and the namespace may exist again with new content, so the server is queried first.
Objects observed *before* it reported that the namespace does not exist belong to no existing
namespace.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Namespace, NamespaceSpec
from sliceplane.api.meta import Object
from sliceplane.api.scheme import RESOURCES, Namespaces, Pods, Resource
from sliceplane.controllers.objects.namespace_content import (
    CONDITIONS,
    NamespaceContent,
    conditions,
    read_conditions,
)
from sliceplane.kit.delays import Backoff
from sliceplane.kit.times import format_time, parse_time
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    Selection,
    Write,
    deletion,
    object_patch,
)
from sliceplane.watch.controller.keyed import KeyedController, is_steady

FINALIZER: Final = "kubernetes"
#: seconds for which a terminating namespace must look empty before it is finalized
QUIET_S: Final = 0.5
#: seconds for which stragglers of a deleted namespace are deleted
STRAGGLERS_S: Final = 600.0
#: deletions in one job; the rest follows in the next
DELETES_MAX: Final = 500
#: seconds between two updates of counts in conditions
STATUS_INTERVAL_S: Final = 5.0
#: seconds granted to the cache when the server has a namespace that it lacks
CACHE_LAG_S: Final = 5.0
_RETRY: Final = Backoff(base_s=0.5, cap_s=60.0)


#: the namespace was removed meanwhile; its event will follow
_GONE: Final = ("NotFound",)

_Straggler = tuple[str, str, str]


class NamespaceController(KeyedController):
    """The controller. Jobs are keyed by the namespace's name."""

    def __init__(self, resources: tuple[Resource, ...] = RESOURCES) -> None:
        others = [
            resource
            for resource in resources
            if resource.namespaced and not resource.is_view and resource is not Pods
        ]
        self._resources: Final = {resource.key: resource for resource in (Pods, *others)}
        watches = (
            Selection(Namespaces),
            *(Selection(resource) for resource in self._resources.values()),
        )
        info = ControllerInfo(name="namespace-controller", aliases=("namespace",), watches=watches)
        super().__init__(info, backoff=_RETRY)
        self._namespaces: dict[str, Namespace] = {}
        self._contents: dict[str, NamespaceContent] = {}
        #: removal time of recently removed namespaces
        self._gone: dict[str, float] = {}
        #: stragglers of removed namespaces to delete, after the server's answer: (resource, name,
        #: uid)
        self._to_delete: dict[str, frozenset[_Straggler]] = {}
        #: stragglers that the present query of the server is about
        self._queried: dict[str, frozenset[_Straggler]] = {}
        #: conditions as last written, by type, and the time of the write
        self._written: dict[str, tuple[dict[str, dict[str, str]], float]] = {}
        #: uid of namespaces whose finalizers we emptied, by name
        self._finalized: dict[str, str] = {}

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        if isinstance(change.object, Namespace):
            self._on_namespace(change.object, gone=change.new is None, now=now)
            return
        content = self._contents.get(change.object.metadata.namespace)
        if content is not None and change.new is not None and is_steady(change):
            content.objects[change.resource][change.new.metadata.name] = change.new
            content.changed = now
        else:
            self._on_content(change, now)

    def _on_namespace(self, namespace: Namespace, *, gone: bool, now: float) -> None:
        name = namespace.metadata.name
        was_terminating = self._is_terminating(name)
        self._gone.pop(name, None)
        self._to_delete.pop(name, None)
        if gone:
            self._namespaces.pop(name, None)
            self._written.pop(name, None)
            self._finalized.pop(name, None)
            self._gone[name] = now
        else:
            self._namespaces[name] = namespace
            if self._is_terminating(name) and not was_terminating:
                self._contents.setdefault(name, NamespaceContent()).changed = now
        self._drop_if_empty(name)
        for expired in [
            name for name, removed_at in self._gone.items() if removed_at + STRAGGLERS_S <= now
        ]:
            del self._gone[expired]
            self._to_delete.pop(expired, None)
        self.enqueue(name, now)

    def _on_content(self, change: Change[Object], now: float) -> None:
        meta = change.object.metadata
        content = self._contents.setdefault(meta.namespace, NamespaceContent())
        if change.new is None:
            content.remove(change.resource, meta.name)
        else:
            content.put(change.resource, change.new)
        content.changed = now
        if self._is_terminating(meta.namespace):
            self.enqueue(meta.namespace, now)
        self._drop_if_empty(meta.namespace)

    def _drop_if_empty(self, name: str) -> None:
        """Forgets an empty namespace unless it waits for its finalization."""
        content = self._contents.get(name)
        if (
            content is not None
            and content.empty()
            and not (name in self._namespaces and self._is_terminating(name))
        ):
            del self._contents[name]

    def _is_terminating(self, name: str) -> bool:
        namespace = self._namespaces.get(name)
        return (
            name in self._gone
            if namespace is None
            else namespace.metadata.deletion_timestamp is not None
        )

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        return tuple(self._writes(key, now)) if self._is_terminating(key) else ()

    def _writes(self, name: str, now: float) -> list[Write]:
        content = self._contents.get(name) or NamespaceContent()
        namespace = self._namespaces.get(name)
        if namespace is None:
            return self._delete_stragglers(name, content)
        deletes = self._deletes(name, content)
        if FINALIZER not in (namespace.spec.finalizers or ()):
            return deletes
        if self._finalized.get(name) == namespace.metadata.uid:
            return []  # the cache will show it soon
        status = self._status(namespace, content, now)
        # A failed deletion ends the job, so its condition is written first.
        writes = [*status, *deletes] if content.failed else [*deletes, *status]
        if writes or not content.empty():
            return writes
        quiet = content.changed + QUIET_S
        if now < quiet:
            self.enqueue_after(name, quiet - now, now)
            return []
        self._finalized[name] = namespace.metadata.uid
        return [_finalize(namespace)]

    def _delete_stragglers(self, name: str, content: NamespaceContent) -> list[Write]:
        """Returns deletions of stragglers that the server's answer covers; a query of the server
        while there are others.
        """
        stragglers = frozenset(
            (key, object_name, content.objects[key][object_name].metadata.uid)
            for key, names in content.remaining.items()
            for object_name in names
        )
        if stragglers <= self._to_delete.get(name, frozenset()):
            return self._deletes(name, content)
        self._queried[name] = stragglers
        return [Write(verb="get", resource=Namespaces, name=name, tolerate=("NotFound",))]

    def _deletes(self, name: str, content: NamespaceContent) -> list[Write]:
        """Returns deletions that were not requested yet: of Pods or, without any, of all resources
        in the order of the resource table; failed ones last.
        """
        chosen: list[tuple[str, str]] = []
        due = self._resources.keys() if content.due_resources is None else content.due_resources
        for key in (key for key in self._resources if key in due):
            for object_name in content.remaining.get(key, ()):
                if len(chosen) == DELETES_MAX:
                    break
                if (key, object_name) not in content.failed:
                    chosen.append((key, object_name))
        # those with the fewest failures come first, so that each is retried
        retries = sorted(
            (identity for identity in content.failed if identity[0] in due),
            key=lambda identity: content.failed[identity][0],
        )
        chosen += retries[: DELETES_MAX - len(chosen)]
        for key, object_name in chosen:
            if (key, object_name) not in content.failed:
                content.on_deletion_requested(key, object_name)
        return [
            deletion(self._resources[key], content.objects[key][object_name].metadata)
            for key, object_name in chosen
        ]

    def _status(self, namespace: Namespace, content: NamespaceContent, now: float) -> list[Write]:
        """Returns a status patch if conditions changed."""
        name = namespace.metadata.name
        written, written_at = self._written.get(name) or (read_conditions(namespace), 0.0)
        desired = {}
        for condition in conditions(self._resources, content, self._stuck(namespace, content, now)):
            before = written.get(condition["type"])
            is_same = before is not None and before["status"] == condition["status"]
            since = (
                before["lastTransitionTime"] if before is not None and is_same else format_time(now)
            )
            desired[condition["type"]] = {**condition, "lastTransitionTime": since}
        if desired == written or (not written and content.empty()):
            return []  # a namespace that is empty at once needs no condition
        only_texts = written and all(
            written[kind]["status"] == condition["status"]
            for kind, condition in desired.items()
            if kind in written
        )
        if only_texts and now < written_at + STATUS_INTERVAL_S:
            self.enqueue_after(name, written_at + STATUS_INTERVAL_S - now, now)
            return []
        self._written[name] = (desired, now)
        others = [
            condition
            for condition in namespace.status.conditions or ()
            if condition.type not in CONDITIONS
        ]
        status = {"status": {"conditions": [*others, *desired.values()]}}
        return [object_patch(Namespaces, namespace.metadata, status, "status", tolerate=_GONE)]

    def _stuck(self, namespace: Namespace, content: NamespaceContent, now: float) -> str:
        """Returns the namespace's name if its Pods outlast their grace period without a finalizer;
        until then it schedules the next check.
        """
        pods_grace_s = content.pods_grace_s()
        if pods_grace_s is None or content.due_resources is None:
            return ""
        name = namespace.metadata.name
        until = parse_time(namespace.metadata.deletion_timestamp or "") + pods_grace_s
        if now >= until:
            return name
        self.enqueue_after(name, until - now, now)
        return ""

    def finished(self, done: Done, now: float) -> None:
        name = done.job.key
        self._record_results(done)
        last = done.job.writes[-1]
        if done.error is not None:
            if last.subresource == "finalize":
                self._finalized.pop(name, None)
        elif last.verb != "get":
            self.enqueue(name, now)  # the rest of many deletions
        elif done.results[0]:
            self._queried.pop(name)
            self.enqueue_after(name, CACHE_LAG_S, now)
        else:
            self._to_delete[name] = self._queried.pop(name)
            self.enqueue(name, now)

    def _record_results(self, done: Done) -> None:
        """Queues unfinished deletions again, and stores the server's messages for failed ones."""
        content = self._contents.get(done.job.key)
        for index, write in enumerate(done.job.writes):
            identity = (write.resource.key, write.name)
            executed = index < len(done.results)
            if write.verb == "patch" and not executed:
                self._written.pop(done.job.key, None)
            if write.verb != "delete" or content is None:
                continue
            if executed:
                if content.failed.pop(identity, None):
                    content.on_deletion_requested(*identity)
                continue
            item = content.objects.get(identity[0], {}).get(identity[1])
            if item is None or item.metadata.deletion_timestamp is not None:
                continue
            content.remaining.setdefault(identity[0], {})[identity[1]] = None
            if index == len(done.results) and done.error is not None:
                times, _ = content.failed.get(identity, (0, ""))
                content.failed[identity] = (times + 1, done.error.message)

    def check(self) -> None:
        super().check()
        for name, content in self._contents.items():
            content.check(name)
            waits = name in self._namespaces and self._is_terminating(name)
            assert waits or not content.empty(), f"{name} is empty and was not dropped"
        assert not set(self._gone) & set(self._namespaces), "a namespace is gone and there"


def _finalize(namespace: Namespace) -> Write:
    remaining = tuple(
        finalizer for finalizer in namespace.spec.finalizers or () if finalizer != FINALIZER
    )
    body = msgspec.structs.replace(
        namespace,
        api_version=Namespaces.api_version,
        kind=Namespaces.kind,
        spec=NamespaceSpec(finalizers=remaining),
    )
    document: dict[str, Any] = msgspec.to_builtins(body)
    document["spec"] = {"finalizers": list(remaining)}
    return Write(
        verb="update",
        resource=Namespaces,
        name=namespace.metadata.name,
        subresource="finalize",
        body=encode(document),
        tolerate=_GONE,
    )
