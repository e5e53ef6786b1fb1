"""Adoption of one Service: its selector in an annotation, its slices from our controllers.

On a managed cluster nobody can switch a controller of kube-controller-manager off, but all three of
its controllers leave a Service without ``spec.selector`` alone (kubernetes.io, "Services without
selectors"). So ``sliceplane adopt`` moves the selector to the annotation ``sliceplane.dev/selector``.
Our controllers with ``--adopted-only`` read it there, and touch no other Service. Their slices have
a manager of their own, so that upstream's EndpointSlice controller never counts them as its own.

While a Service moves, it has both selectors, and a second annotation names the direction. Both
controllers write their slices then; consumers merge them. Without the second annotation a Service
with both selectors was applied again with its selector (from Git, say): upstream's controllers have
it, and ours give way as soon as upstream's slices have every endpoint of ours.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from sliceplane.api.core import Service
from sliceplane.api.discovery import MANAGED_BY_CONTROLLER
from sliceplane.kit.names import check_label_value, check_qualified_name

#: the selector of an adopted Service: ``app=web,tier=front``
ANNOTATION_SELECTOR: Final = "sliceplane.dev/selector"
#: the direction in which a Service moves: ``adopting`` or ``releasing``
ANNOTATION_ADOPTION: Final = "sliceplane.dev/adoption"
ADOPTING: Final = "adopting"
RELEASING: Final = "releasing"
#: the manager of an adopted Service's slices
MANAGED_BY_ADOPTED: Final = "endpointslice-controller.sliceplane.dev"
#: labels in a selector; upstream has no limit, and annotations have 256 KiB together
_LABELS_MAX: Final = 256


class AdoptionStage(Enum):
    """The state of a Service between upstream's controllers and ours."""

    UNSELECTED = "has no selector"
    UPSTREAM = "has its selector in the spec only"
    ADOPTING = "moves to the controllers with --adopted-only"
    ADOPTED = "has its selector in the annotation only"
    RELEASING = "moves back to upstream's controllers"
    CONFLICT = "was adopted, and then applied again with its selector"
    INVALID = "has an annotation that is no selector, and no selector in the spec"


class Scope(Enum):
    """The Services of a controller: those with a selector in the spec, or adopted ones."""

    SELECTING = "selecting"
    ADOPTED = "adopted"

    @property
    def manager(self) -> str:
        """The manager of the slices that the controller writes."""
        return MANAGED_BY_ADOPTED if self is Scope.ADOPTED else MANAGED_BY_CONTROLLER


#: stages in which controllers of adopted Services write slices
_OURS: Final = (AdoptionStage.ADOPTING, AdoptionStage.ADOPTED, AdoptionStage.RELEASING)


def parse_selector(text: str) -> dict[str, str]:
    """Returns the selector of an annotation. Raises ``ValueError`` with the reason."""
    pairs: dict[str, str] = {}
    parts = text.split(",", _LABELS_MAX)
    if len(parts) > _LABELS_MAX:
        raise ValueError(f"more than {_LABELS_MAX} labels")
    for part in parts:
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise ValueError(f"{part.strip()!r} is not KEY=VALUE")
        problems = (*check_qualified_name(key), *check_label_value(value))
        if problems:
            raise ValueError(f"{part.strip()!r}: {problems[0]}")
        if key in pairs:
            raise ValueError(f"{key} is named twice")
        pairs[key] = value
    return pairs


def adopted_selector(service: Service) -> dict[str, str]:
    """Returns the selector of the annotation; empty without one, or if it is invalid."""
    text = (service.metadata.annotations or {}).get(ANNOTATION_SELECTOR)
    if text is None:
        return {}
    try:
        return parse_selector(text)
    except ValueError:
        return {}


def stage_of(service: Service) -> AdoptionStage:
    annotations = service.metadata.annotations or {}
    selects = bool(service.spec.selector)
    if ANNOTATION_SELECTOR not in annotations:
        return AdoptionStage.UPSTREAM if selects else AdoptionStage.UNSELECTED
    valid = bool(adopted_selector(service))
    if not selects:
        return AdoptionStage.ADOPTED if valid else AdoptionStage.INVALID
    moves = {ADOPTING: AdoptionStage.ADOPTING, RELEASING: AdoptionStage.RELEASING}
    direction = annotations.get(ANNOTATION_ADOPTION, "") if valid else ""
    return moves.get(direction, AdoptionStage.CONFLICT)


def selector_of(service: Service, scope: Scope | None = None) -> dict[str, str]:
    """Returns the labels of the Pods of *service*; empty if nothing selects Pods for it.

    *scope*: as controllers of that scope see it, and empty for a Service that is not theirs. For
    readers (``None``) it is the selector in the spec, else that of the annotation.
    """
    if scope is Scope.ADOPTED:
        return adopted_selector(service) if stage_of(service) in _OURS else {}
    if service.spec.selector or scope is Scope.SELECTING:
        return service.spec.selector or {}
    return adopted_selector(service)
