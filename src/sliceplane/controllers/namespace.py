"""Namespaces that are being deleted: empty them, say how far it is, let them go.

Everything in a terminating namespace is deleted, each object with its uid as precondition: first
the Pods, and when they are gone everything else (KEP-5080). What the server will not delete (a
webhook or a right is in the way, say) is told about in a condition and tried again after everything
else that is due, so that it holds up nothing but the namespace, and a Pod what comes after Pods.
What finalizers hold is waited for. When the caches have shown it empty for ``QUIET_S`` (they lag
behind each other, but nothing new can be created by then), ``spec.finalizers`` is emptied through
the finalize subresource, which removes the namespace.

Should an object of a deleted namespace still turn up afterwards, it is deleted as well. But caches
lag behind each other, and the namespace may be there again with new contents: so the server is
asked first. What was seen *before* it said that there is no such namespace belongs to none that
lives.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Namespace, NamespaceSpec
from sliceplane.api.meta import Object
from sliceplane.api.scheme import RESOURCES, Namespaces, Pods, Resource
from sliceplane.controllers.namespace_content import CONDITIONS, NamespaceContent, conditions, said
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
#: how long a terminating namespace must look empty before it is let go
QUIET_S: Final = 0.5
#: how long stragglers of a deleted namespace are looked for
AFTERMATH_S: Final = 600.0
#: deletes in one job; the rest follows in the next
DELETES_MAX: Final = 500
#: how often counts in conditions are brought up to date
STATUS_INTERVAL_S: Final = 5.0
#: when the server has a namespace that the cache has not, the cache is given so long
CACHE_LAG_S: Final = 5.0
_RETRY: Final = Backoff(base_s=0.5, cap_s=60.0)


#: the namespace itself went meanwhile; its event will say so
_GONE: Final = ("NotFound",)

_Straggler = tuple[str, str, str]


class NamespaceController(KeyedController):
    """Jobs are keyed by the namespace's name."""

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
        #: namespaces that went lately, and when
        self._gone: dict[str, float] = {}
        #: of those, what the server's word condemns: (resource, name, uid)
        self._condemned: dict[str, frozenset[_Straggler]] = {}
        #: and what the server was asked about
        self._accused: dict[str, frozenset[_Straggler]] = {}
        #: conditions as last written, by type, and when
        self._told: dict[str, tuple[dict[str, dict[str, str]], float]] = {}
        #: namespaces whose finalizers we emptied: name -> uid
        self._let_go: dict[str, str] = {}

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
        self._condemned.pop(name, None)
        if gone:
            self._namespaces.pop(name, None)
            self._told.pop(name, None)
            self._let_go.pop(name, None)
            self._gone[name] = now
        else:
            self._namespaces[name] = namespace
            if self._is_terminating(name) and not was_terminating:
                self._contents.setdefault(name, NamespaceContent()).changed = now
        self._drop_if_empty(name)
        for late in [name for name, when in self._gone.items() if when + AFTERMATH_S <= now]:
            del self._gone[late]
            self._condemned.pop(late, None)
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
        """An empty namespace is remembered only while it waits to be let go."""
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
            return self._aftermath(name, content)
        deletes = self._deletes(name, content)
        if FINALIZER not in (namespace.spec.finalizers or ()):
            return deletes
        if self._let_go.get(name) == namespace.metadata.uid:
            return []  # the cache will show it soon
        status = self._status(namespace, content, now)
        # A delete that fails ends the job: what is to be said of it must not wait behind it.
        writes = [*status, *deletes] if content.failed else [*deletes, *status]
        if writes or not content.empty():
            return writes
        quiet = content.changed + QUIET_S
        if now < quiet:
            self.enqueue_after(name, quiet - now, now)
            return []
        self._let_go[name] = namespace.metadata.uid
        return [_finalize(namespace)]

    def _aftermath(self, name: str, content: NamespaceContent) -> list[Write]:
        """Deletes of what is condemned; a question for the server while anything is not."""
        left = frozenset(
            (key, object_name, content.objects[key][object_name].metadata.uid)
            for key, names in content.left.items()
            for object_name in names
        )
        if left <= self._condemned.get(name, frozenset()):
            return self._deletes(name, content)
        self._accused[name] = left
        return [Write(verb="get", resource=Namespaces, name=name, tolerate=("NotFound",))]

    def _deletes(self, name: str, content: NamespaceContent) -> list[Write]:
        """Deletes not asked for yet, of Pods or, without any, in the order of the resource table;
        last what failed.
        """
        chosen: list[tuple[str, str]] = []
        due = self._resources.keys() if content.now_due is None else content.now_due
        for key in (key for key in self._resources if key in due):
            for object_name in content.left.get(key, ()):
                if len(chosen) == DELETES_MAX:
                    break
                if (key, object_name) not in content.failed:
                    chosen.append((key, object_name))
        # what failed least often is tried first, so that each has its turn
        again = sorted(
            (place for place in content.failed if place[0] in due),
            key=lambda place: content.failed[place][0],
        )
        chosen += again[: DELETES_MAX - len(chosen)]
        for key, object_name in chosen:
            if (key, object_name) not in content.failed:
                content.not_left(key, object_name)
        return [
            deletion(self._resources[key], content.objects[key][object_name].metadata)
            for key, object_name in chosen
        ]

    def _status(self, namespace: Namespace, content: NamespaceContent, now: float) -> list[Write]:
        """A status patch, if conditions changed."""
        name = namespace.metadata.name
        written, when = self._told.get(name) or (said(namespace), 0.0)
        wanted = {}
        for condition in conditions(self._resources, content, self._stuck(namespace, content, now)):
            before = written.get(condition["type"])
            same = before is not None and before["status"] == condition["status"]
            since = (
                before["lastTransitionTime"] if before is not None and same else format_time(now)
            )
            wanted[condition["type"]] = {**condition, "lastTransitionTime": since}
        if wanted == written or (not written and content.empty()):
            return []  # a namespace that is empty at once goes without a word
        only_texts = written and all(
            written[kind]["status"] == condition["status"]
            for kind, condition in wanted.items()
            if kind in written
        )
        if only_texts and now < when + STATUS_INTERVAL_S:
            self.enqueue_after(name, when + STATUS_INTERVAL_S - now, now)
            return []
        self._told[name] = (wanted, now)
        others = [
            condition
            for condition in namespace.status.conditions or ()
            if condition.type not in CONDITIONS
        ]
        status = {"status": {"conditions": [*others, *wanted.values()]}}
        return [object_patch(Namespaces, namespace.metadata, status, "status", tolerate=_GONE)]

    def _stuck(self, namespace: Namespace, content: NamespaceContent, now: float) -> str:
        """The namespace's name if its Pods outlast their time and no finalizer says why; else it is
        looked at then.
        """
        patience_s = content.patience_s()
        if patience_s is None or content.now_due is None:
            return ""
        name = namespace.metadata.name
        until = parse_time(namespace.metadata.deletion_timestamp or "") + patience_s
        if now >= until:
            return name
        self.enqueue_after(name, until - now, now)
        return ""

    def finished(self, done: Done, now: float) -> None:
        name = done.job.key
        self._follow(done)
        last = done.job.writes[-1]
        if done.error is not None:
            if last.subresource == "finalize":
                self._let_go.pop(name, None)
        elif last.verb != "get":
            self.enqueue(name, now)  # the rest of many deletes
        elif done.results[0]:
            self._accused.pop(name)
            self.enqueue_after(name, CACHE_LAG_S, now)
        else:
            self._condemned[name] = self._accused.pop(name)
            self.enqueue(name, now)

    def _follow(self, done: Done) -> None:
        """What was not done is not asked for; what failed is remembered with what the server
        said.
        """
        content = self._contents.get(done.job.key)
        for index, write in enumerate(done.job.writes):
            place = (write.resource.key, write.name)
            performed = index < len(done.results)
            if write.verb == "patch" and not performed:
                self._told.pop(done.job.key, None)
            if write.verb != "delete" or content is None:
                continue
            if performed:
                if content.failed.pop(place, None):
                    content.not_left(*place)
                continue
            item = content.objects.get(place[0], {}).get(place[1])
            if item is None or item.metadata.deletion_timestamp is not None:
                continue
            content.left.setdefault(place[0], {})[place[1]] = None
            if index == len(done.results) and done.error is not None:
                times, _ = content.failed.get(place, (0, ""))
                content.failed[place] = (times + 1, done.error.message)

    def check(self) -> None:
        super().check()
        for name, content in self._contents.items():
            content.check(name)
            waits = name in self._namespaces and self._is_terminating(name)
            assert waits or not content.empty(), f"{name} is empty and was not dropped"
        assert not set(self._gone) & set(self._namespaces), "a namespace is gone and there"


def _finalize(namespace: Namespace) -> Write:
    left = tuple(
        finalizer for finalizer in namespace.spec.finalizers or () if finalizer != FINALIZER
    )
    body = msgspec.structs.replace(
        namespace,
        api_version=Namespaces.api_version,
        kind=Namespaces.kind,
        spec=NamespaceSpec(finalizers=left),
    )
    document: dict[str, Any] = msgspec.to_builtins(body)
    document["spec"] = {"finalizers": list(left)}
    return Write(
        verb="update",
        resource=Namespaces,
        name=namespace.metadata.name,
        subresource="finalize",
        body=encode(document),
        tolerate=_GONE,
    )
