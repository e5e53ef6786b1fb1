"""The next action for a Deployment: one step of a rollout, or of scaling, from the current state of
its ReplicaSets.

Four states, in this order of precedence (``mode``):

    deleted   nothing but the status
    paused    sets are resized for ``kubectl scale``, and the template is not rolled out
    scaling   the desired number of Pods has changed since the sets were resized: one active set
              follows, several keep their proportions; the rollout goes on afterwards
    rollout   by strategy: ``RollingUpdate`` moves within surge and unavailability, ``Recreate``
              waits until the last Pod of every old set is gone before there is a new one
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.emulation.deployments.revisions import (
    DESIRED,
    Step,
    counts,
    create,
    forget_history,
    keep_current,
    number_in,
    resize,
)
from sliceplane.emulation.deployments.rollout import (
    limits,
    newest_size,
    older_sizes,
    proportional_sizes,
)
from sliceplane.emulation.owner import Refusal

Mode = Literal["deleted", "paused", "scaling", "rollout"]


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment and its sets: ``newest`` is that of the template as it is now, ``older`` the
    rest, oldest first.
    """

    deployment: Deployment
    newest: ReplicaSet | None
    older: list[ReplicaSet]
    #: of the template; the newest set is, or would be, called by it
    hashed: str
    #: another object has that name
    taken: bool = False
    #: the server would not have the newest set, and it is too early to ask again
    refusal: Refusal | None = None
    #: older sets have Pods that have not ended, dying ones included
    old_pods: bool = False

    @property
    def sets(self) -> list[ReplicaSet]:
        return [*self.older, *([self.newest] if self.newest is not None else [])]

    @property
    def active(self) -> list[ReplicaSet]:
        return [item for item in self.sets if item.spec.desired_replicas]

    @property
    def rolls(self) -> bool:
        return self.deployment.spec.strategy.type == "RollingUpdate"

    @property
    def mode(self) -> Mode:
        if self.deployment.metadata.is_deleting:
            return "deleted"
        if self.deployment.spec.paused:
            return "paused"
        desired = self.deployment.spec.desired_replicas
        rescaled = any(number_in(item, DESIRED) not in (None, desired) for item in self.active)
        return "scaling" if rescaled and (self.rolls or len(self.active) == 1) else "rollout"

    @property
    def collides(self) -> bool:
        """Returns True if the newest set cannot be created, since its name is taken."""
        return self.newest is None and self.taken and self.mode == "rollout"

    def is_complete(self) -> bool:
        desired = self.deployment.spec.desired_replicas
        return self.newest is not None and (
            self.newest.status.replicas
            == sum(item.status.replicas for item in self.sets)
            == sum(item.status.available_replicas for item in self.sets)
            == desired
        )


def next_steps(rollout: Rollout) -> tuple[Step, ...]:
    deployment = rollout.deployment
    mode = rollout.mode
    if mode == "deleted":
        return ()
    current: tuple[Step, ...] = ()
    if rollout.newest is not None:
        current = keep_current(deployment, rollout.newest, rollout.older)
    if mode == "paused":
        return (*current, *_scale(rollout), *forget_history(deployment, rollout.older))
    if mode == "scaling":
        return (*current, *_scale(rollout))
    moves = _roll(rollout) if rollout.rolls else _recreate(rollout)
    if not moves and rollout.is_complete():
        moves = forget_history(deployment, rollout.older)
    return (*current, *moves)


def _scale(rollout: Rollout) -> tuple[Step, ...]:
    deployment = rollout.deployment
    active = rollout.active
    desired = rollout.deployment.spec.desired_replicas
    if len(active) <= 1:
        only = active or ([rollout.newest] if rollout.newest is not None else rollout.older[-1:])
        return tuple(step for item in only for step in resize(deployment, item, desired))
    newest = rollout.newest
    if newest is not None and _is_saturated(deployment, newest):
        return tuple(
            step
            for item in rollout.older
            if item.spec.desired_replicas
            for step in resize(deployment, item, 0)
        )
    if not rollout.rolls:
        return ()
    surge, _ = limits(deployment.spec.strategy, desired)
    ordered = sorted(active, key=_age)
    sizes = proportional_sizes(
        desired, surge, [counts(item, deployment.status.replicas) for item in ordered]
    )
    return tuple(
        step for item in ordered for step in resize(deployment, item, sizes[item.metadata.name])
    )


def _is_saturated(deployment: Deployment, newest: ReplicaSet) -> bool:
    """Returns True if the newest set alone has the desired size, so that older ones are obsolete."""
    recorded = number_in(newest, DESIRED)
    return (
        deployment.spec.desired_replicas
        == newest.spec.desired_replicas
        == newest.status.available_replicas
        == recorded
    )


def _roll(rollout: Rollout) -> tuple[Step, ...]:
    deployment = rollout.deployment
    newest = rollout.newest
    older = rollout.older
    desired = deployment.spec.desired_replicas
    surge, unavailable = limits(deployment.spec.strategy, desired)
    before = [counts(item) for item in older]
    if newest is None:
        return _create(rollout, newest_size(desired, surge, None, before))
    size = newest_size(desired, surge, counts(newest), before)
    if size != newest.spec.desired_replicas:
        return resize(deployment, newest, size)
    sizes = older_sizes(desired, unavailable, counts(newest), before)
    shrunk = [item for item in older if item.spec.desired_replicas != sizes[item.metadata.name]]
    return tuple(
        step for item in shrunk for step in resize(deployment, item, sizes[item.metadata.name])
    )


def _recreate(rollout: Rollout) -> tuple[Step, ...]:
    deployment = rollout.deployment
    newest = rollout.newest
    standing = [item for item in rollout.older if item.spec.desired_replicas]
    if standing:
        return tuple(step for item in standing for step in resize(deployment, item, 0))
    if rollout.old_pods:
        return ()
    if newest is None:
        return _create(rollout, deployment.spec.desired_replicas)
    return resize(deployment, newest, deployment.spec.desired_replicas)


def _create(rollout: Rollout, replicas: int) -> tuple[Step, ...]:
    if rollout.taken or rollout.refusal is not None:
        return ()
    return (create(rollout.deployment, rollout.older, rollout.hashed, replicas),)


def _age(item: ReplicaSet) -> tuple[str, str]:
    return item.metadata.creation_timestamp or "", item.metadata.name
