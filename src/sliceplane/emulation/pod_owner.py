"""What the controllers of ReplicaSets, ReplicationControllers, StatefulSets and DaemonSets have in
common.

Each keeps its owners and their Pods, claims Pods before anything else (``claims``), sees to the
``history`` of templates where there is one, and then asks the subclass what is missing
(``decide``). What the server did becomes Events; what it refuses (a spent quota, say) becomes a
``FailedCreate`` Event and a back-off (``refusals``). Pods are created one after the other and the
first refusal ends the job, so an owner that may have none costs one request a try, however many it
wants.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Generic, Literal, TypeVar

from sliceplane.api.codec import decode
from sliceplane.api.core import Pod
from sliceplane.api.errors import is_namespace_terminating
from sliceplane.api.meta import LabelSelector, Object
from sliceplane.api.scheme import ControllerRevisions, Pods, Resource
from sliceplane.emulation.claims import Claims
from sliceplane.emulation.history import Historied, History
from sliceplane.emulation.pods import available_at, is_active
from sliceplane.emulation.refusals import Refusals
from sliceplane.emulation.templates import controller_uid
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, EventNote, Selection, Write
from sliceplane.watch.controller.keyed import KeyedController

#: creations in one job; a larger gap takes several rounds, so that other keys get their turn
CREATES_PER_JOB_MAX: Final = 250
O = TypeVar("O", bound=Object)  # noqa: E741  # an owner


class PodOwnerController(KeyedController, Generic[O]):
    """Keys are ``namespace/name`` of owners."""

    def __init__(
        self,
        owners: Resource,
        projection: type[O],
        component: str,
        *more: Selection,
        history: History | None = None,
    ) -> None:
        """*component* is what Events name as their source; *more* is watched beside owners and
        Pods.
        """
        watches = (Selection(owners), Selection(Pods), *more)
        if history is not None:
            watches += (Selection(ControllerRevisions),)
        super().__init__(ControllerInfo(f"{owners.singular}-emulation", watches))
        self._resource = owners
        self._projection = projection
        self._component = component
        self._owners: dict[str, O] = {}
        self._key_of_uid: dict[str, str] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # owner uid -> pod key -> Pod
        self._claims: Claims[Pod] = Claims(owners, Pods)
        self._refusals = Refusals()
        self._history = history

    # -- what a subclass says

    @abstractmethod
    def selector_of(self, owner: O) -> LabelSelector: ...

    @abstractmethod
    def decide(self, owner: O, pods: list[Pod], now: float) -> tuple[Write, ...]:
        """What is to be done for *owner*, whose Pods, ended and terminating ones included, are
        *pods* by name.
        """

    def may_adopt(self, owner: O, pod: Pod) -> bool:
        return is_active(pod)

    def on_owner(self, old: O | None, new: O | None) -> None:
        """An owner came, changed or went; ``decide`` follows."""

    def on_other(self, change: Change[Object], now: float) -> None:
        """A change of what is watched beside owners and Pods."""

    def revisions_in_use(self, owner: O, pods: list[Pod]) -> set[str]:
        """Names of the revisions that must stay, of an owner with a history."""
        return set()

    def event_text(self, owner: O, verb: str, pod: str, error: str) -> str:
        """What an Event says of a Pod that was created or deleted, or not, because of *error*."""
        if error:
            return f"Error {'creating' if verb == 'create' else 'deleting'}: {error}"
        return f"{'Created' if verb == 'create' else 'Deleted'} pod: {pod}"

    # -- what a subclass uses

    def held_back(self, owner: O, now: float) -> bool:
        """The server refused this owner's Pods, and it is too early to ask again."""
        meta = owner.metadata
        refusal = self._refusals.holding(meta.uid, meta.generation, now)
        if refusal is not None:
            self.enqueue_after(meta.key, refusal.until - now, now)
        return refusal is not None

    def available(self, owner: O, pods: list[Pod], min_ready_s: int, now: float) -> set[str]:
        """uids of the Pods that are available; the owner is looked at again when the next one will
        be.
        """
        moments = {pod.metadata.uid: available_at(pod, min_ready_s) for pod in pods}
        later = [moment - now for moment in moments.values() if moment is not None and moment > now]
        if later:
            self.enqueue_after(owner.metadata.key, min(later), now)
        return {uid for uid, moment in moments.items() if moment is not None and moment <= now}

    # -- what is there

    def on_change(self, change: Change[Object], now: float) -> None:
        self._expectations.observe(change)
        if change.resource == self._resource.key:
            self._on_owner(change, now)
        elif change.resource == Pods.key:
            self._on_pod(change, now)
        elif self._history is not None and change.resource == ControllerRevisions.key:
            uids, keys = self._history.on_change(change)
            for key in (*(self._key_of_uid[uid] for uid in uids if uid in self._key_of_uid), *keys):
                self.enqueue(key, now)
        else:
            self.on_other(change, now)

    def _on_pod(self, change: Change[Object], now: float) -> None:
        old, new = (pod if isinstance(pod, Pod) else None for pod in (change.old, change.new))
        for pod in (old, new):
            owner = controller_uid(pod, self._resource) if pod is not None else ""
            if pod is None or not owner:
                continue
            owned = self._pods.setdefault(owner, {})
            if pod is new:
                owned[pod.metadata.key] = pod
            else:
                owned.pop(pod.metadata.key, None)
                if not owned:
                    del self._pods[owner]
            if owner in self._key_of_uid:
                self.enqueue(self._key_of_uid[owner], now)
        for key in self._claims.on_child(old, new):
            self.enqueue(key, now)

    def _on_owner(self, change: Change[Object], now: float) -> None:
        self.alive_or_over(change)
        key = change.object.metadata.key
        old, new = (
            item if isinstance(item, self._projection) else None
            for item in (change.old, change.new)
        )
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
        self.enqueue(key, now)

    def _select(self, key: str, selector: LabelSelector | None) -> None:
        self._claims.on_owner(key, selector)
        if self._history is not None:
            self._history.on_owner(key, selector)

    # -- what follows

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        owner = self._owners.get(key)
        if owner is None or self.rests(key, owner.metadata.uid, now):
            return ()
        if self.waits_for_cache(key, now):
            return ()
        owned = self._pods.get(owner.metadata.uid, {})
        pods = [owned[name] for name in sorted(owned)]
        claims = self._claims.plan(
            owner, [pod for pod in pods if is_active(pod)], lambda pod: self.may_adopt(owner, pod)
        )
        if not claims and isinstance(owner, Historied) and self._history is not None:
            claims = self._history.plan(owner, self.revisions_in_use(owner, pods))
        return claims or self.decide(owner, pods, now)

    def finished(self, done: Done, now: float) -> None:
        owner = self._owners.get(done.job.key)
        if owner is not None:
            self.note_gone(owner.metadata.uid, done, self._resource, now)
            again = self._claims.heard(owner, done)
            if isinstance(owner, Historied) and self._history is not None:
                again |= self._history.heard(owner, done)
            if again:
                self.enqueue(done.job.key, now)
            self._tell(owner, done, now)
        self._expectations.expect(done, now)

    def _tell(self, owner: O, done: Done, now: float) -> None:
        """Events of what was done and refused; what was refused is kept for status and back-off."""
        meta = owner.metadata
        for write, result in zip(done.job.writes, done.results, strict=False):
            if write.resource is Pods and write.verb == "create":
                name = decode(result, Object).metadata.name
                self._event(
                    owner, "Normal", "SuccessfulCreate", self.event_text(owner, "create", name, "")
                )
            elif write.resource is Pods and write.verb == "delete" and result:
                self._event(
                    owner,
                    "Normal",
                    "SuccessfulDelete",
                    self.event_text(owner, "delete", write.name, ""),
                )
        if done.error is None:
            if self._refusals.of(meta.uid) is not None and any(
                _scales(write) for write in done.job.writes
            ):
                self._refusals.forget(meta.uid)
                self.enqueue(meta.key, now)  # the status still tells of it
            return
        failed = done.job.writes[len(done.results)]
        if not _scales(failed) or is_namespace_terminating(done.error):
            return
        message = done.error.message
        name = failed.name
        reason = "FailedDelete"
        if failed.verb == "create":
            wanted = decode(failed.body, Object).metadata
            made = (done.error.details or {}).get("name", "")
            name = wanted.name
            reason = "FailedCreate"
            if not name and wanted.generate_name and made.startswith(wanted.generate_name):
                # The prefix in the place of the name that was made for this try: Events of one
                # cause are one.
                message = message.replace(f'"{made}"', f'"{wanted.generate_name}"')
        self._refusals.note(meta.uid, meta.generation, reason, message, now)
        self._event(owner, "Warning", reason, self.event_text(owner, failed.verb, name, message))
        self.enqueue(meta.key, now)  # the status tells at once

    def _event(self, owner: O, kind: Literal["Normal", "Warning"], reason: str, text: str) -> None:
        self.note(
            EventNote(
                regarding=owner,
                regarding_resource=self._resource,
                type=kind,
                reason=reason,
                note=text,
                component=self._component,
                action="Scaling",
            )
        )

    def check(self) -> None:
        super().check()
        self._claims.check()
        if self._history is not None:
            self._history.check()
        assert set(self._key_of_uid.values()) == set(self._owners), (
            f"{self._key_of_uid} != {sorted(self._owners)}"
        )
        assert all(self._pods.values()), "an owner without Pods is kept"
        alive = set(self._key_of_uid)
        assert self._refusals.uids() <= alive, f"{self._refusals.uids()} not in {alive}"


def _scales(write: Write) -> bool:
    return write.resource is Pods and write.verb in ("create", "delete")
