"""The steps of ``sliceplane adopt`` and ``sliceplane release``: one Service moves from upstream's
controllers to ours, or back.

``next_step`` is a function of what the server has: the next request, a reason to wait, or the end.
The Service itself records how far it is (``api.selectors.adoption``), so a command that was killed after any
request is completed by the same command, run again. Each request is a no-op if it is repeated.

Both directions have the same order: both controllers write slices, then the old one stops, then its
slices are deleted. A consumer that merges slices misses no endpoint at any time.

Upstream leaves Endpoints of a Service without a selector as they are, and its mirroring controller
then mirrors them into slices that nobody keeps true. So Endpoints are excluded from mirroring before
the selector moves. Upstream's Endpoints controller may remove that label until then; our controller
restores it, and the mirroring controller deletes its slices again.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import (
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.findings.wording import pairs_text
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.api.selectors.adoption import (
    ADOPTING,
    ANNOTATION_ADOPTION,
    ANNOTATION_SELECTOR,
    MANAGED_BY_ADOPTED,
    RELEASING,
    AdoptionStage,
    adopted_selector,
    stage_of,
)
from sliceplane.slices.adoption import Target, ready_targets
from sliceplane.watch.controller.base import deletion, object_patch

Direction = Literal["adopt", "release"]
#: seconds that a released Service's slices wait for their controller before the command deletes them
CONTROLLER_GRACE_S: Final = 10.0
#: missing endpoints that a message names
_NAMED_MAX: Final = 3
START_CONTROLLERS: Final = "sliceplane controllers --adopted-only"


class MovingService(msgspec.Struct, frozen=True, kw_only=True):
    """A Service, its slices of every manager and its Endpoints (``None``: none), as the server has
    them.
    """

    service: Service
    slices: tuple[EndpointSlice, ...] = ()
    endpoints: Endpoints | None = None

    def of(self, manager: str) -> tuple[EndpointSlice, ...]:
        """Returns the slices of *manager* that do not terminate."""
        return tuple(
            observed
            for observed in self.slices
            if observed.manager == manager and not observed.metadata.is_deleting
        )

    @property
    def key(self) -> str:
        return self.service.metadata.key


class MoveRequest(msgspec.Struct, frozen=True):
    """The next request, and its effect as a clause for the user."""

    effect: str
    write: Write


class MoveWait(msgspec.Struct, frozen=True):
    """The reason why nothing can be requested yet; ``remedy``: what to do if that lasts."""

    reason: str
    remedy: str = ""


class MoveFinished(msgspec.Struct, frozen=True):
    """The Service is where it should be."""


class MoveRefused(Exception):
    """The Service cannot move; the text is for the user."""


Step = MoveRequest | MoveWait | MoveFinished


def next_step(moving: MovingService, direction: Direction, waited_s: float) -> Step:
    """Returns what is next. *waited_s*: seconds since the last request. Raises ``MoveRefused``."""
    return _next_of_adopt(moving) if direction == "adopt" else _next_of_release(moving, waited_s)


def give_up(moving: MovingService) -> MoveRequest | None:
    """Returns the request that takes back an adoption which has not moved the selector yet."""
    if stage_of(moving.service) is not AdoptionStage.ADOPTING:
        return None
    return _annotate(moving, "the annotations are removed again", selector=None, adoption=None)


def steps_of_adopt(moving: MovingService) -> tuple[str, ...]:
    """Returns the steps of an adoption as clauses, with the numbers of this Service."""
    service = moving.service
    stage = stage_of(service)
    if stage is AdoptionStage.ADOPTED:
        return ("nothing: it is adopted",)
    theirs = moving.of(MANAGED_BY_CONTROLLER)
    ready = {address for *_, address in ready_targets(theirs)}
    text = pairs_text(service.spec.selector or {})
    return (
        f"annotate it with {ANNOTATION_SELECTOR}={text}",
        f"wait for EndpointSlices of ours with its {len(ready)} ready addresses",
        "exclude its Endpoints from mirroring",
        f"remove spec.selector ({text})",
        f"wait until {len(theirs)} EndpointSlices of upstream's are deleted",
    )


# -- to our controllers


def _next_of_adopt(moving: MovingService) -> Step:
    service = moving.service
    stage = stage_of(service)
    _check_adoptable(service, stage)
    if stage is AdoptionStage.ADOPTED:
        return _after_adoption(moving)
    text = pairs_text(service.spec.selector or {})
    annotations = service.metadata.annotations or {}
    if stage is not AdoptionStage.ADOPTING or annotations[ANNOTATION_SELECTOR] != text:
        return _annotate(moving, "both controllers write slices", selector=text, adoption=ADOPTING)
    ours, theirs = moving.of(MANAGED_BY_ADOPTED), moving.of(MANAGED_BY_CONTROLLER)
    missing = ready_targets(theirs) - ready_targets(ours)
    if not ours or missing:
        reason = _missing("our", missing) if ours else "our controller has written no EndpointSlice"
        return MoveWait(reason, f"do controllers run? {START_CONTROLLERS}")
    if not _is_unmirrored(moving.endpoints):
        return _exclude_from_mirroring(service)
    change: Document = {"spec": {"selector": None}}
    return _annotate(moving, "the selector is in the annotation", change, text, adoption=None)


def _check_adoptable(service: Service, stage: AdoptionStage) -> None:
    key = service.metadata.key
    if service.spec.type == "ExternalName":
        raise MoveRefused(f"{key} is of type ExternalName: it has no endpoints")
    if service.metadata.is_deleting:
        raise MoveRefused(f"{key} is being deleted")
    if controlled_by(service):
        raise MoveRefused(f"{key}: {controlled_by(service)} writes its selector at each rollout")
    _check_stage(service, stage)


def _check_stage(service: Service, stage: AdoptionStage) -> None:
    key = service.metadata.key
    if stage is AdoptionStage.UNSELECTED:
        raise MoveRefused(f"{key} has no selector: somebody else writes its endpoints")
    if stage is AdoptionStage.INVALID:
        raise MoveRefused(
            f"{key}: annotation {ANNOTATION_SELECTOR} is no selector; to repair it: kubectl -n "
            f"{service.metadata.namespace} annotate --overwrite service {service.metadata.name} "
            f"{ANNOTATION_SELECTOR}=KEY=VALUE,..."
        )


def _after_adoption(moving: MovingService) -> Step:
    service = moving.service
    if ANNOTATION_ADOPTION in (service.metadata.annotations or {}):
        text = (service.metadata.annotations or {})[ANNOTATION_SELECTOR]
        return _annotate(moving, "the move is complete", selector=text, adoption=None)
    if not _is_unmirrored(moving.endpoints):
        return _exclude_from_mirroring(service)
    for manager, reason in (
        (MANAGED_BY_CONTROLLER, "our controller has not deleted upstream's EndpointSlices"),
        (MANAGED_BY_MIRRORING, "upstream has not deleted mirrored EndpointSlices"),
    ):
        if moving.of(manager):
            return MoveWait(reason, f"do controllers run? {START_CONTROLLERS}")
    return MoveFinished()


def _is_unmirrored(endpoints: Endpoints | None) -> bool:
    return endpoints is None or (endpoints.metadata.labels or {}).get(LABEL_SKIP_MIRROR) == "true"


def _exclude_from_mirroring(service: Service) -> MoveRequest:
    write = Write(
        verb="patch",
        resource=EndpointsObjects,
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        body=encode({"metadata": {"labels": {LABEL_SKIP_MIRROR: "true"}}}),
        tolerate=("NotFound",),
    )
    return MoveRequest("Endpoints are excluded from mirroring", write)


# -- and back


def _next_of_release(moving: MovingService, waited_s: float) -> Step:
    service = moving.service
    stage = stage_of(service)
    if stage in (AdoptionStage.INVALID, AdoptionStage.UNSELECTED):
        _check_stage(service, stage)
    if stage is AdoptionStage.ADOPTED:
        selector = adopted_selector(service)
        change: Document = {"spec": {"selector": selector}}
        text = (service.metadata.annotations or {})[ANNOTATION_SELECTOR]
        return _annotate(moving, "both controllers write slices", change, text, RELEASING)
    ours, theirs = moving.of(MANAGED_BY_ADOPTED), moving.of(MANAGED_BY_CONTROLLER)
    missing = ready_targets(ours) - ready_targets(theirs)
    if ours and (missing or not theirs):
        return MoveWait(
            _missing("upstream's", missing),
            "does kube-controller-manager run its EndpointSlice controller? are endpoints "
            "retained? sliceplane guard status",
        )
    if stage is not AdoptionStage.UPSTREAM:
        return _annotate(moving, "our controllers stop", selector=None, adoption=None)
    if not ours:
        return MoveFinished()
    if waited_s < CONTROLLER_GRACE_S:
        return MoveWait("our controller has not deleted its EndpointSlices")
    return MoveRequest("our EndpointSlices are deleted", deletion(EndpointSlices, ours[0].metadata))


# -- helpers


def _annotate(
    moving: MovingService,
    effect: str,
    change: Document | None = None,
    selector: str | None = None,
    adoption: str | None = None,
) -> MoveRequest:
    """Returns a patch of this version of the Service. ``None`` removes an annotation."""
    meta = moving.service.metadata
    annotations = {ANNOTATION_SELECTOR: selector, ANNOTATION_ADOPTION: adoption}
    metadata = {"resourceVersion": meta.resource_version, "annotations": annotations}
    write = object_patch(Services, meta, {**(change or {}), "metadata": metadata}, tolerate=())
    return MoveRequest(effect, write)


def _missing(whose: str, missing: frozenset[Target]) -> str:
    names = sorted({address for *_, address in missing})
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{whose} EndpointSlices lack {', '.join(names[:_NAMED_MAX]) or 'all endpoints'}{more}"


# -- what else a user must know

#: programs that read spec.selector, and what becomes of them
READERS: Final = (
    ("kubectl port-forward|logs|attach service/NAME", "fails: name a Pod or its workload instead"),
    ("kubectl get pods by a Service's selector, kubectl expose", "no selector to copy"),
    ("Argo Rollouts, Flagger", "write the selector themselves: do not adopt their Services"),
    (
        "load balancer controllers that add readiness gates to Pods by selector (AWS)",
        "new Pods get no gate: do not adopt Services of target groups of type ip that need it",
    ),
    ("kube-scheduler's default spreading", "ignores the Service; it still uses the workload"),
    ("service meshes and dashboards that map Services to Pods", "see a Service without Pods"),
)


def git_lines(service: Service) -> tuple[str, ...]:
    """Returns what keeps a GitOps tool from applying the selector again."""
    meta = service.metadata
    argo = (
        f"{{kind: Service, namespace: {meta.namespace}, name: {meta.name}, jsonPointers: "
        "[/spec/selector]}"
    )
    return (
        f"in Git: move spec.selector of {meta.key} to the annotation {ANNOTATION_SELECTOR}; or",
        f"Argo CD: ignoreDifferences: [{argo}], syncOptions: [RespectIgnoreDifferences=true]",
        "Flux: kustomize.toolkit.fluxcd.io/ssa: IfNotPresent on the Service",
    )


def controlled_by(service: Service) -> str:
    """Returns the program that writes the selector of *service* itself, as its annotations show; ""
    for none known. Such a Service must not be adopted.
    """
    if "argo-rollouts.argoproj.io/managed-by-rollouts" in (service.metadata.annotations or {}):
        return "Argo Rollouts"
    if any(o.kind == "Canary" for o in service.metadata.owner_references or ()):
        return "Flagger"
    return ""
