"""Label and field selectors: parse once, match millions of times (kubernetes.io, Labels and
Selectors; Field Selectors).

A selector that came over the wire is parsed into requirements, checked, and compiled into one
closure; ``matches`` is that closure, with no dispatch left in it. The common selector, one label
that equals one value, costs a dictionary look-up.

Every parse error is a ``StatusError`` 400 in Kubernetes' own words.
"""

from __future__ import annotations

from sliceplane.api.selectors.fields import FieldRequirements, parse_fields
from sliceplane.api.selectors.grammar import parse_labels
from sliceplane.api.selectors.labels import (
    EVERYTHING,
    NOTHING,
    LabelRequirements,
    Operator,
    Requirement,
    from_label_selector,
    from_map,
)

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "FieldRequirements",
    "LabelRequirements",
    "Operator",
    "Requirement",
    "from_label_selector",
    "from_map",
    "parse_fields",
    "parse_labels",
]
