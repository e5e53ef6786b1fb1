"""The base of the controllers of Deployments, ReplicaSets, ReplicationControllers, StatefulSets and
DaemonSets.

Each caches its owners and their children, claims children before anything else (``claims``), keeps
the ``history`` of templates where there is one, and then asks the subclass what is missing
(``decide``). What the server did becomes Events. What it refuses (a spent quota, say) becomes a
``FailedCreate`` Event and a back-off. Pods are created one after the other and the first refusal
ends the job, so an owner that may have none costs one request a try, however many it desires.

A refused owner goes on writing its status, so the back-off of its queue does not serve: a status
that was written would count as a success. ``Refusals`` has the back-off: a retry is due when the
delay has passed or the spec has changed, and the first success ends it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.meta import Document, LabelSelector, Object
from sliceplane.api.scheme import ControllerRevisions, Resource
from sliceplane.emulation.claims import Claims
from sliceplane.emulation.history import Historied, History
from sliceplane.emulation.templates import controller_uid
from sliceplane.kit.times import parse_time
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    Selection,
    Write,
    object_patch,
)
from sliceplane.watch.controller.keyed import RETRY_BACKOFF, KeyedController

#: creations in one job; a larger gap takes several rounds, so that other keys get their turn
CREATES_PER_JOB_MAX: Final = 250
O = TypeVar("O", bound=Object)  # noqa: E741  # an owner
C = TypeVar("C", bound=Object)


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    message: str
    generation: int
    tries: int
    until: float


class Refusals:
    """Refused creations and deletions by uid of the owner.  Its controller forgets owners that are
    gone.
    """

    def __init__(self) -> None:
        self._refused: dict[str, Refusal] = {}

    def note(self, owner: Object, reason: str, message: str, now: float) -> None:
        meta = owner.metadata
        before = self._refused.get(meta.uid)
        same = before is not None and before.generation == meta.generation
        tries = before.tries + 1 if before is not None and same else 1
        self._refused[meta.uid] = Refusal(
            reason=reason,
            message=message,
            generation=meta.generation,
            tries=tries,
            until=now + RETRY_BACKOFF.delay_s(tries - 1),
        )

    def of(self, uid: str) -> Refusal | None:
        return self._refused.get(uid)

    def current(self, owner: Object, now: float) -> Refusal | None:
        """Returns the refusal of *owner* that is still backed off, if there is one."""
        refusal = self._refused.get(owner.metadata.uid)
        if refusal is None or now >= refusal.until:
            return None
        return refusal if refusal.generation == owner.metadata.generation else None

    def forget(self, uid: str) -> None:
        self._refused.pop(uid, None)

    def uids(self) -> set[str]:
        return set(self._refused)


class OwnerController(KeyedController, Generic[O, C]):
    """Keys are ``namespace/name`` of owners."""

    def __init__(
        self,
        owners: Resource,
        children: Resource,
        component: str,
        *more: Selection,
        history: History | None = None,
    ) -> None:
        """*component*: the source of Events; *more*: watched beside owners and children."""
        watches = (Selection(owners), Selection(children), *more)
        if history is not None:
            watches += (Selection(ControllerRevisions),)
        name = f"{owners.singular}-emulation"
        super().__init__(ControllerInfo(name, watches, component=component))
        self._resource = owners
        self._child_resource = children
        self._owners: dict[str, O] = {}
        self._key_of_uid: dict[str, str] = {}
        self._children: dict[str, dict[str, C]] = {}  # owner uid -> key -> child
        self._claims: Claims[C] = Claims(owners, children)
        self._refusals = Refusals()
        self._history = history

    # -- the parts of a subclass

    @abstractmethod
    def selector_of(self, owner: O) -> LabelSelector: ...

    @abstractmethod
    def decide(self, owner: O, children: list[C], now: float) -> tuple[Write, ...]:
        """Returns the writes for *owner*, whose *children*, ended and terminating ones included,
        are in the order of their names.
        """

    def is_live(self, child: C) -> bool:
        """Returns True if *child* may be adopted or released."""
        return True

    def may_adopt(self, owner: O, child: C) -> bool:
        return self.is_live(child)

    def on_owner(self, old: O | None, new: O | None) -> None:
        """An owner was created, changed or removed; ``decide`` follows."""

    def on_child(self, old: C | None, new: C | None, now: float) -> None:
        """A child of any owner, or of none, was created, changed or removed."""

    def on_other(self, change: Change[Object], now: float) -> None:
        """A change of what is watched beside owners and children."""

    def revisions_in_use(self, owner: O, children: list[C]) -> set[str]:
        """Returns the names of the revisions that must stay, of an owner with a history."""
        return set()

    def is_refusal(self, failed: Write, error: StatusError) -> bool:
        """Returns True if *error* means that the owner cannot have its children."""
        return self._scales(failed) and not is_namespace_terminating(error)

    def event_text(self, owner: O, verb: str, child: str, error: str) -> str:
        """Returns the text of an Event about a child that was created or deleted, or was not,
        because of *error*.
        """
        if error:
            return f"Error {'creating' if verb == 'create' else 'deleting'}: {error}"
        return f"{'Created' if verb == 'create' else 'Deleted'} pod: {child}"

    def successes(self, owner: O, done: Done) -> Iterable[tuple[str, str]]:
        """Yields reason and text of the Events about what *done* achieved."""
        for write, result in zip(done.job.writes, done.results, strict=False):
            if self._scales(write) and result:
                name = write.name or decode(result, Object).metadata.name
                text = self.event_text(owner, write.verb, name, "")
                yield f"Successful{write.verb.title()}", text

    # -- for subclasses

    def refusal_under_backoff(self, owner: O, now: float) -> Refusal | None:
        """Returns the refusal of this owner's children if it is too early to try again."""
        refusal = self._refusals.current(owner, now)
        if refusal is not None:
            self.enqueue_after(owner.metadata.key, refusal.until - now, now)
        return refusal

    def available(self, owner: O, pods: list[Pod], min_ready_s: int, now: float) -> set[str]:
        """Returns the uids of available Pods; plans *owner* again when the next one becomes so."""
        moments = {pod.metadata.uid: _available_at(pod, min_ready_s) for pod in pods}
        later = [moment - now for moment in moments.values() if moment is not None and moment > now]
        if later:
            self.enqueue_after(owner.metadata.key, min(later), now)
        return {uid for uid, moment in moments.items() if moment is not None and moment <= now}

    def _scales(self, write: Write) -> bool:
        return write.resource is self._child_resource and write.verb in ("create", "delete")

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        self._expectations.observe(change)
        old: Any = change.old
        new: Any = change.new
        if change.resource == self._resource.key:
            self.alive_or_over(change)
            self._on_owner(change.object.metadata.key, old, new)
            self.enqueue(change.object.metadata.key, now)
        elif change.resource == self._child_resource.key:
            self._on_child(old, new, now)
        elif self._history is not None and change.resource == ControllerRevisions.key:
            uids, keys = self._history.on_change(change)
            for key in (*(self._key_of_uid[uid] for uid in uids if uid in self._key_of_uid), *keys):
                self.enqueue(key, now)
        else:
            self.on_other(change, now)

    def _on_child(self, old: C | None, new: C | None, now: float) -> None:
        for child in (old, new):
            owner = controller_uid(child, self._resource) if child is not None else ""
            if child is None or not owner:
                continue
            owned = self._children.setdefault(owner, {})
            if child is new:
                owned[child.metadata.key] = child
            else:
                owned.pop(child.metadata.key, None)
                if not owned:
                    del self._children[owner]
            if owner in self._key_of_uid:
                self.enqueue(self._key_of_uid[owner], now)
        self.on_child(old, new, now)
        for key in self._claims.on_child(old, new):
            self.enqueue(key, now)

    def _on_owner(self, key: str, old: O | None, new: O | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            uid = old.metadata.uid
            self._key_of_uid.pop(uid, None)
            self._refusals.forget(uid)
            self._claims.forget(uid)
            if self._history is not None:
                self._history.forget(uid)
        if new is not None:
            self._owners[key] = new
            self._key_of_uid[new.metadata.uid] = key
            if old is None or self.selector_of(old) != self.selector_of(new):
                self._select(key, self.selector_of(new))
        else:
            del self._owners[key]
            self._select(key, None)
            self._expectations.forget(key)
        self.on_owner(old, new)

    def _select(self, key: str, selector: LabelSelector | None) -> None:
        self._claims.on_owner(key, selector)
        if self._history is not None:
            self._history.on_owner(key, selector)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        owner = self._owners.get(key)
        if owner is None or self.rests(key, owner.metadata.uid, now):
            return ()
        if self.waits_for_cache(key, now):
            return ()
        owned = self._children.get(owner.metadata.uid, {})
        children = [owned[name] for name in sorted(owned)]
        claims = self._claims.plan(
            owner, filter(self.is_live, children), lambda child: self.may_adopt(owner, child)
        )
        if not claims and isinstance(owner, Historied) and self._history is not None:
            claims = self._history.plan(owner, self.revisions_in_use(owner, children))
        return claims or self.decide(owner, children, now)

    def finished(self, done: Done, now: float) -> None:
        owner = self._owners.get(done.job.key)
        if owner is not None:
            self.note_gone(owner.metadata.uid, done, self._resource, now)
            again = self._claims.on_done(owner, done)
            if isinstance(owner, Historied) and self._history is not None:
                again |= self._history.on_done(owner, done)
            if again:
                self.enqueue(done.job.key, now)
            for reason, text in self.successes(owner, done):
                self.report(self._resource, owner, "Normal", reason, text, action="Scaling")
            self._note_refusal(owner, done, now)
        self._expectations.expect(done, now)

    def _note_refusal(self, owner: O, done: Done, now: float) -> None:
        """Keeps what was refused, for the status and the back-off, and forgets it after a
        success.
        """
        meta = owner.metadata
        if done.error is None:
            if self._refusals.of(meta.uid) is not None and any(map(self._scales, done.job.writes)):
                self._refusals.forget(meta.uid)
                self.enqueue(meta.key, now)  # the status still shows it
            return
        failed = done.job.writes[len(done.results)]
        if not self.is_refusal(failed, done.error):
            return
        message = done.error.message
        name = failed.name
        if failed.verb == "create":
            requested = decode(failed.body, Object).metadata
            generated = (done.error.details or {}).get("name", "")
            name = requested.name
            prefix = requested.generate_name
            if not name and prefix and generated.startswith(prefix):
                # The prefix replaces the name that the server generated for this try, so that
                # Events of one cause are one.
                message = message.replace(f'"{generated}"', f'"{prefix}"')
        reason = self._failure_reason(failed)
        self._refusals.note(owner, reason, message, now)
        text = self.event_text(owner, failed.verb, name, message)
        self.report(self._resource, owner, "Warning", reason, text, action="Scaling")
        self.enqueue(meta.key, now)  # the status shows it at once

    def _failure_reason(self, failed: Write) -> str:
        return f"Failed{failed.verb.title()}"

    def check(self) -> None:
        super().check()
        self._claims.check()
        if self._history is not None:
            self._history.check()
        assert set(self._key_of_uid.values()) == set(self._owners), (
            f"{self._key_of_uid} != {sorted(self._owners)}"
        )
        assert all(self._children.values()), "an owner without children is kept"
        alive = set(self._key_of_uid)
        assert self._refusals.uids() <= alive, f"{self._refusals.uids()} not in {alive}"


def status_write(
    resource: Resource,
    owner: Any,
    values: Document,
    conditions: list[Document] | None = None,
    *,
    always: tuple[str, ...],
    is_complete: bool = True,
) -> tuple[Write, ...]:
    """Returns the patch that brings the status of *owner* up to date; none if it is.

    A zero is "absent" upstream but for the members in *always*; null in a merge patch removes the
    member. *is_complete*: the status has all members that it always shows.
    """
    current = msgspec.to_builtins(owner.status)
    same = all(current.get(member, 0) == value for member, value in values.items())
    if conditions is not None:
        same = same and conditions == (current.get("conditions") or [])
    if same and is_complete:
        return ()
    status: Document = {
        member: value if value or member in always else None for member, value in values.items()
    }
    if conditions is not None:
        status["conditions"] = conditions or None
    return (object_patch(resource, owner.metadata, {"status": status}, "status"),)


def _available_at(pod: Pod, min_ready_s: int) -> float | None:
    """Returns when the Pod becomes available; ``None`` while it is not ready."""
    ready = pod.condition("Ready")
    if ready is None or ready.status != "True":
        return None
    if not min_ready_s or not ready.last_transition_time:
        return 0.0
    return parse_time(ready.last_transition_time) + min_ready_s
