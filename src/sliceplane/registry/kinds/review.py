"""Reviews: questions that are POSTed and answered by ``registry.authorization.reviews``, and never stored."""

from __future__ import annotations

from typing import Final

from sliceplane.api.scheme import REVIEWS
from sliceplane.documents.table.columns import PLAIN
from sliceplane.registry.kinds.kind import bare_kind

REVIEW_KINDS: Final = tuple(bare_kind(resource, PLAIN) for resource in REVIEWS)
