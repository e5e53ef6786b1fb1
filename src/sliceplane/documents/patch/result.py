"""Does what a patch made still decode as its kind?"""

from __future__ import annotations

from typing import Literal

import msgspec

from sliceplane.api.errors import StatusError, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.documents.patch.go_text import go_text
from sliceplane.documents.schema import accepts, first_mismatch, lookup, unknown_fields


def check_patched(
    resource_key: str,
    before: Document,
    patched: Document,
    *,
    strategic_patch: Document | None = None,
    patch_problems: tuple[str, ...] = (),
    validation: Literal["Ignore", "Warn", "Strict"] = "Warn",
) -> tuple[str, ...]:
    """Warnings about *patched*: what the patch brought in that the kind does not have, after *patch_problems*.

    Unknown members that *before* had already are not the patch's fault and not reported.  Raises the 422 of reference
    B7 for a result that does not decode, and with ``Strict`` for any warning.  It shows the patched object; of a
    strategic merge patch it shows the patch, which is then given.
    """
    if accepts(resource_key, patched) and not patch_problems:
        return ()
    mismatch = first_mismatch(lookup(resource_key), patched)
    if mismatch is not None:
        raise _undecodable(patched, strategic_patch, str(mismatch))
    if validation == "Ignore":
        return ()
    known = frozenset(unknown_fields(resource_key, before))
    found = tuple(problem for problem in unknown_fields(resource_key, patched) if problem not in known)
    problems = patch_problems + found
    if problems and validation == "Strict":
        raise _undecodable(patched, strategic_patch, f"strict decoding error: {', '.join(problems)}")
    return problems


def _undecodable(patched: Document, strategic_patch: Document | None, detail: str) -> StatusError:
    shown = msgspec.json.encode(patched).decode() if strategic_patch is None else go_text(strategic_patch)
    return invalid("", "", "", [invalid_value("patch", shown, detail)])
