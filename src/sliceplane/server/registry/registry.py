"""The one entry point: every verb of the API as a method, all of them synchronous and
deterministic.

Duties of a caller:

- await the durability of ``Outcome.revision`` (0: nothing to wait for) before answering;
- for a 504 "Too large resource version": wait up to three seconds for that revision and retry;
- call ``on_aborted`` when the back end failed and the store dropped its staged events.
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
from sliceplane.server.registry.authorization.index import Rights
from sliceplane.server.registry.authorization.open_watches import OpenWatches
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

#: handlers of POSTs to a subresource, and of subresources that are views of the object; all other
#: subresources are served like the resource (``api.requests``)
_POSTED: Final = {
    "binding": subresources.bind,
    "eviction": eviction.evict,
    "token": token_request.grant,
}
_VIEWS: Final = {"scale": subresources.SCALE}
#: handlers of POSTs to a collection whose objects are not stored
_UNSTORED: Final = {
    **{resource.key: reviews.answer for resource in REVIEWS},
    Bindings.key: subresources.bind_named,
}


def _converted(target: Target, outcome: Outcome) -> Outcome:
    return answers.convert_outcome(target, outcome) if target.converted else outcome


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
        #: open watches, which are authorized again after a change of permissions
        self.open_watches = OpenWatches(self._core)
        policy = self._core.policy
        self.metrics = Metrics()
        self.metrics.computed(
            "counter",
            "sliceplane_rbac_comparisons_given_up_total",
            "Writes of roles and bindings refused as their rules were too many to compare.",
            lambda: policy.comparisons_aborted,
        )

    # Reading

    def get(self, ctx: Context, target: Target, resource_version: str | None = None) -> Record:
        record = read.get(self._core, target, resource_version)
        view = _VIEWS.get(target.subresource)
        if view is not None:
            return view.get(record)
        return answers.convert_record(target, record) if target.converted else record

    def list(self, ctx: Context, target: Target, options: ListOptions) -> ListOutcome:
        listed = read.list_records(self._core, target, options)
        return answers.convert_list(target, listed) if target.converted else listed

    def list_steps(self, ctx: Context, target: Target, options: ListOptions) -> read.Steps:
        """``list`` in steps, for a caller that serves other requests in between.  The records are
        in the stored version (see ``verbs.answers.convert_record``).
        """
        return read.list_steps(self._core, target, options)

    def watch_plan(self, ctx: Context, target: Target, options: WatchOptions) -> WatchPlan:
        return read.watch_plan(self._core, target, options)

    # Writing

    def create(self, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
        call = WriteCall(self._core, ctx, target, options)
        answer = _UNSTORED.get(target.resource.key) or _POSTED.get(target.subresource)
        if answer is not None:
            return answer(call, body)
        return _converted(target, creating.create(call, body))

    def update(self, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
        call = WriteCall(self._core, ctx, target, options)
        view = _VIEWS.get(target.subresource)
        return view.update(call, body) if view else _converted(target, updating.update(call, body))

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
            return _converted(target, applying.apply(call, patch))
        return _converted(target, updating.patch(call, patch_type, patch))

    def delete(self, ctx: Context, target: Target, options: DeleteOptions) -> Outcome:
        return _converted(target, deleting.delete(self._core, ctx, target, options))

    def delete_collection(
        self, ctx: Context, target: Target, selection: ListOptions, options: DeleteOptions
    ) -> Outcome:
        return deleting.delete_collection(self._core, ctx, target, selection, options)

    def delete_some(
        self, ctx: Context, target: Target, records: Iterable[Record], options: DeleteOptions
    ) -> int:
        """Deletes *records* of the collection *target*.  Returns the revision to wait for."""
        return deleting.delete_some(self._core, ctx, target, records, options)

    # Offloaded writes (see ``offload``)

    @classmethod
    def around(cls, core: Core) -> Registry:
        """Returns a registry over an existing *core*."""
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
        """Returns the probable reads of a write to *target*, with *keys* and *collections*."""
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
        """Stages the changes of *result*.  Raises ``offload.StaleInput``, and the ``StatusError``
        of the write.
        """
        return offload.apply_result(self._core, ctx, basis, result, target, dry_run=dry_run)

    # Access

    def decide(self, user: User, attributes: Attributes) -> Decision:
        """Authorizes an action of *user*.  Never raises.  No verb does this, so every caller
        must.
        """
        return self._core.policy.decide(user, attributes)

    def rights(self, user: User) -> Rights:
        """Returns all rules that apply to *user*, by namespace ("": everywhere): equal until a
        grant changes.
        """
        return self._core.policy.rights(user)

    def authenticate(self, token: str, now: float) -> User | None:
        """Returns the user of a bearer token, or ``None`` if it is not valid here."""
        authenticated = bearer.authenticate(self._core, token, (), now)
        return authenticated.user if authenticated else None

    def impersonate(self, user: User, requested: impersonation.Impersonation) -> User:
        """Returns the user that *user* acts as.  Raises the 403 ``StatusError``."""
        return impersonation.impersonate(self._core.policy, user, requested)

    # Maintenance

    def bootstrap(self, now: float) -> int:
        """Creates the objects that every cluster has.  Returns the revision to wait for."""
        return bootstrapping.bootstrap(self._core, now)

    def expire(self, now: float, most: int = 1000) -> tuple[Record, ...]:
        """Stages the removal of at most *most* expired objects; call it every few seconds.

        Returns their last versions; wait for the revision of the last one.
        """
        core = self._core
        removed = []
        for key in core.expiry.take_due(now, most):
            record = core.store.latest(key)
            assert record is not None, f"{key} has a deadline and does not exist"
            removed.append(core.remove(record))
            core.store.end_step()
        return tuple(removed)

    def tend(self, now: float) -> int:
        """Repairs IPAddresses that users changed, and maintains ServiceCIDRs; call it about every
        second.

        Returns the revision to wait for, 0 if nothing was written.
        """
        return self._run_as_server(service_addresses.tend, now)

    def keep_api_service(self, now: float) -> int:
        """Renews this server's endpoint of ``default/kubernetes``; call it every
        ``api_service.INTERVAL_S``.

        Returns the revision to wait for, 0 if nothing was written.  Raises ``StatusError``.
        """
        return self._run_as_server(api_service.reconcile, now)

    def withdraw_api_service(self, now: float) -> int:
        """Removes this server's endpoint of ``default/kubernetes`` when it stops.  Returns and
        raises as ``keep_api_service``.
        """
        return self._run_as_server(api_service.withdraw, now)

    def _run_as_server(self, action: Callable[[Core, Context], None], now: float) -> int:
        before = self._core.store.staged_revision
        action(self._core, Context(now=now, user=bootstrapping.SYSTEM_USER))
        after = self._core.store.staged_revision
        return after if after != before else 0

    def on_aborted(self) -> None:
        """Rebuilds the indexes after the store dropped its staged events."""
        self._core.rebuild()

    def on_changed(self, keys: Iterable[Key]) -> None:
        """Updates the indexes after another server wrote *keys*, or after their staged versions
        were dropped.  Cheaper than ``on_aborted``.
        """
        self._core.follow(keys)

    def remaining(self, namespace: str) -> tuple[RemainingObjects, ...]:
        """Returns the objects that remain in a namespace, for the controller that empties it."""
        return remaining(self._core.store, namespace)

    def check(self) -> None:
        """Asserts that all indexes equal those built from the newest records.  O(objects)."""
        self._core.check()
        self.open_watches.check()
