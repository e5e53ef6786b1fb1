"""The one entrance: every verb of the API as a method, all of them synchronous and deterministic.

What a caller must do besides calling:

- await the durability of ``Outcome.revision`` (0: nothing to wait for) before answering;
- for a 504 "Too large resource version": wait up to three seconds for that revision and ask once
  more;
- call ``on_aborted`` when the back end failed and the store forgot what was staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sliceplane.api.scheme import REVIEWS, Bindings
from sliceplane.api.users import User
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.rng import Rng
from sliceplane.server.registry import api_service, offload, service_addresses
from sliceplane.server.registry import bootstrap as bootstrapping
from sliceplane.server.registry.authentication import bearer, impersonation, token_request
from sliceplane.server.registry.authorization import reviews
from sliceplane.server.registry.authorization.attendance import Attendance
from sliceplane.server.registry.authorization.index import Rights
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.kinds.namespace import RemainingObjects, remaining
from sliceplane.server.registry.types import (
    Attributes,
    Body,
    Context,
    Decision,
    DeleteOptions,
    ListOptions,
    ListOutcome,
    Outcome,
    PatchType,
    Target,
    TokenService,
    WatchOptions,
    WatchPlan,
    WriteOptions,
)
from sliceplane.server.registry.verbs import answers, eviction, read, subresources
from sliceplane.server.registry.verbs import apply as applying
from sliceplane.server.registry.verbs import create as creating
from sliceplane.server.registry.verbs import delete as deleting
from sliceplane.server.registry.verbs import update as updating
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record

#: who answers what is POSTed to a subresource, and who serves objects that are views of the
#: resource's own; the others are served as the resource is (``api.requests``)
_POSTED: Final = {
    "binding": subresources.bind,
    "eviction": eviction.evict,
    "token": token_request.grant,
}
_VIEWS: Final = {"scale": subresources.SCALE}
#: and what is POSTed to a collection, and stored nowhere
_ASKED: Final = {
    **{resource.key: reviews.answer for resource in REVIEWS},
    Bindings.key: subresources.bind_named,
}


def _shown(target: Target, outcome: Outcome) -> Outcome:
    return answers.shown(target, outcome) if target.converted else outcome


class Registry:
    """REST semantics over one store.  One caller at a time; all methods raise
    ``api.errors.StatusError``.
    """

    def __init__(
        self,
        store: Store,
        *,
        rng: Rng,
        config: RegistryConfig | None = None,
        tokens: TokenService | None = None,
    ) -> None:
        self._core = Core(store, rng, config or RegistryConfig(), tokens)
        #: open watches, and whether they are allowed still
        self.attendance = Attendance(self._core)
        policy = self._core.policy
        self.metrics = Metrics()
        self.metrics.computed(
            "counter",
            "sliceplane_rbac_comparisons_given_up_total",
            "Writes of roles and bindings refused as their rules were too many to compare.",
            lambda: policy.given_up,
        )

    # Reading

    def get(self, ctx: Context, target: Target, resource_version: str | None = None) -> Record:
        record = read.get(self._core, target, resource_version)
        view = _VIEWS.get(target.subresource)
        if view is not None:
            return view.get(record)
        return answers.shown_record(target, record) if target.converted else record

    def list(self, ctx: Context, target: Target, options: ListOptions) -> ListOutcome:
        listed = read.list_records(self._core, target, options)
        return answers.shown_list(target, listed) if target.converted else listed

    def list_steps(self, ctx: Context, target: Target, options: ListOptions) -> read.Steps:
        """``list`` in steps, for a caller who has others to serve in between; what it returns is in
        the stored version (see ``verbs.answers.shown_record``).
        """
        return read.list_steps(self._core, target, options)

    def watch_plan(self, ctx: Context, target: Target, options: WatchOptions) -> WatchPlan:
        return read.watch_plan(self._core, target, options)

    # Writing

    def create(self, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
        call = WriteCall(self._core, ctx, target, options)
        answer = _ASKED.get(target.resource.key) or _POSTED.get(target.subresource)
        if answer is not None:
            return answer(call, body)
        return _shown(target, creating.create(call, body))

    def update(self, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
        call = WriteCall(self._core, ctx, target, options)
        view = _VIEWS.get(target.subresource)
        return view.update(call, body) if view else _shown(target, updating.update(call, body))

    def patch(
        self,
        ctx: Context,
        target: Target,
        patch_type: PatchType,
        patch: bytes,
        options: WriteOptions,
    ) -> Outcome:
        call = WriteCall(self._core, ctx, target, options)
        view = _VIEWS.get(target.subresource)
        if view is not None:
            return view.patch(call, patch_type, patch)
        if patch_type == "apply":
            return _shown(target, applying.apply(call, patch))
        return _shown(target, updating.patch(call, patch_type, patch))

    def delete(self, ctx: Context, target: Target, options: DeleteOptions) -> Outcome:
        return _shown(target, deleting.delete(self._core, ctx, target, options))

    def delete_collection(
        self, ctx: Context, target: Target, selection: ListOptions, options: DeleteOptions
    ) -> Outcome:
        return deleting.delete_collection(self._core, ctx, target, selection, options)

    def delete_some(
        self, ctx: Context, target: Target, records: Iterable[Record], options: DeleteOptions
    ) -> int:
        """Delete what a list of the collection *target* found, and return the revision to
        wait for.
        """
        return deleting.delete_some(self._core, ctx, target, records, options)

    # Offloaded writes (see ``offload``)

    @classmethod
    def around(cls, core: Core) -> Registry:
        """The verbs over a *core* that was made elsewhere."""
        registry = cls.__new__(cls)
        registry._core = core
        return registry

    def gather_input(
        self,
        ctx: Context,
        target: Target,
        keys: frozenset[Key] = frozenset(),
        collections: frozenset[offload.Collection] = frozenset(),
    ) -> offload.Input:
        """Returns what a write to *target* probably reads, with *keys* and *collections*."""
        return offload.gather_input(self._core, ctx, target, keys=keys, collections=collections)

    def apply_result(
        self,
        ctx: Context,
        basis: offload.Input,
        result: offload.Result,
        target: Target,
        *,
        dry_run: bool,
    ) -> Outcome:
        """Stages what was worked out on *basis*.  Raises ``offload.StaleInput``, and the
        ``StatusError`` of the write.
        """
        return offload.apply_result(self._core, ctx, basis, result, target, dry_run=dry_run)

    # Access

    def decide(self, user: User, wanted: Attributes) -> Decision:
        """May *user* do that?  Never raises; nothing else of the registry asks, so every caller has
        to.
        """
        return self._core.policy.decide(user, wanted)

    def rights(self, user: User) -> Rights:
        """All that *user* may do, by namespace ("": everywhere): the same until something is given
        or taken.
        """
        return self._core.policy.rights(user)

    def authenticate(self, token: str, now: float) -> User | None:
        """Returns the user of this bearer token; ``None``: it is worth nothing here."""
        authenticated = bearer.authenticate(self._core, token, (), now)
        return authenticated.user if authenticated else None

    def impersonate(self, user: User, asked: impersonation.Impersonation) -> User:
        """Returns the user that *user* acts as.  Raises the 403 ``StatusError``."""
        return impersonation.impersonate(self._core.policy, user, asked)

    # Life

    def bootstrap(self, now: float) -> int:
        """Create what every cluster has.  Returns the revision to wait for."""
        return bootstrapping.bootstrap(self._core, now)

    def expire(self, now: float, most: int = 1000) -> tuple[Record, ...]:
        """Stage the removal of at most *most* objects whose time is over; call it every few
        seconds.

        Returns their last versions; the revision of the last one is what to wait for.
        """
        core = self._core
        gone = []
        for key in core.expiry.take_due(now, most):
            record = core.store.latest(key)
            assert record is not None, f"{key} has a deadline and does not exist"
            gone.append(core.remove(record))
            core.store.end_step()
        return tuple(gone)

    def tend(self, now: float) -> int:
        """Repair what was done to IPAddresses by hand, and look after ServiceCIDRs; call it every
        second or so.

        Returns the revision to wait for, 0 if nothing was written.
        """
        return self._done_by_the_server(service_addresses.tend, now)

    def keep_api_service(self, now: float) -> int:
        """Renew this server's place behind ``default/kubernetes``; call it every
        ``api_service.INTERVAL_S``.

        Returns the revision to wait for, 0 if nothing was written.  Raises ``StatusError``.
        """
        return self._done_by_the_server(api_service.reconcile, now)

    def leave_api_service(self, now: float) -> int:
        """This server stops and is no endpoint any more.  Returns and raises as
        ``keep_api_service``.
        """
        return self._done_by_the_server(api_service.withdraw, now)

    def _done_by_the_server(self, deed: Callable[[Core, Context], None], now: float) -> int:
        before = self._core.store.staged_revision
        deed(self._core, Context(now=now, user=bootstrapping.SYSTEM_USER))
        after = self._core.store.staged_revision
        return after if after != before else 0

    def on_aborted(self) -> None:
        """The store forgot its staged events: what they held is free again."""
        self._core.rebuild()

    def on_changed(self, keys: Iterable[Key]) -> None:
        """Another server wrote *keys*, or what was staged for them was forgotten.  Cheaper than
        ``on_aborted``.
        """
        self._core.follow(keys)

    def remaining(self, namespace: str) -> tuple[RemainingObjects, ...]:
        """Returns the objects left in a namespace, for the controller that empties it."""
        return remaining(self._core.store, namespace)

    def check(self) -> None:
        """Assert that Services hold exactly what the newest records say.  O(Services)."""
        self._core.check()
        self.attendance.check()
