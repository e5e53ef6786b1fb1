"""The hints that a Service requests: by annotation (KEP-2433), or by ``spec.trafficDistribution``
(KEP-4444).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sliceplane.kit.names import is_domain_qualified

#: requests hints (KEP-2433); takes precedence over ``spec.trafficDistribution``
ANNOTATION_TOPOLOGY_MODE: Final = "service.kubernetes.io/topology-mode"
#: deprecated; takes precedence over the newer annotation
ANNOTATION_TOPOLOGY_AWARE_HINTS: Final = "service.kubernetes.io/topology-aware-hints"


def requests_annotation_hints(annotations: Mapping[str, str]) -> bool:
    """Returns True if an annotation requests hints by the zones' shares of CPU."""
    return _topology_mode(annotations) in ("Auto", "auto")


def annotation_heuristic(annotations: Mapping[str, str]) -> str:
    """Returns the heuristic that the annotation names; "" for none.

    KEP-2433 leaves values with a domain to implementations, and upstream's controller ignores them.
    An API server of upstream refuses such values in ``spec.trafficDistribution``.
    """
    value = _topology_mode(annotations)
    return value if is_domain_qualified(value) else ""


def requested_distribution(annotations: Mapping[str, str], field: str | None) -> str:
    """Returns the heuristic of the annotation, or else the value of ``spec.trafficDistribution``;
    "" if the annotation requests hints by shares of CPU.
    """
    if requests_annotation_hints(annotations):
        return ""
    return annotation_heuristic(annotations) or field or ""


def _topology_mode(annotations: Mapping[str, str]) -> str:
    mode = annotations.get(ANNOTATION_TOPOLOGY_MODE, "")
    return annotations.get(ANNOTATION_TOPOLOGY_AWARE_HINTS, mode)
