"""DELETE on a collection: what a list with the same selectors finds, deleted one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from sliceplane.api.errors import StatusError
from sliceplane.registry import versions
from sliceplane.registry.core import Core
from sliceplane.registry.delete import delete
from sliceplane.registry.documents import list_bytes
from sliceplane.registry.read import list_records
from sliceplane.registry.types import Context, DeleteOptions, ListOptions, Outcome, Target
from sliceplane.store.types import Record


def delete_collection(
    core: Core, ctx: Context, target: Target, selection: ListOptions, options: DeleteOptions
) -> Outcome:
    """200 with the objects as they were before, under the list's own version.

    An object that is gone meanwhile is passed over.  Raises what ``list_records`` raises, and the first
    error of a single delete: what was deleted before it stays deleted.
    """
    listed = list_records(core, target, selection)
    if target.converted:
        listed = versions.shown_list(target, listed)
    revision = delete_some(core, ctx, target, listed.records, options)
    body = list_bytes(
        target.spoken,
        listed.records,
        resource_version=listed.resource_version,
        continue_token=listed.continue_token,
        remaining=listed.remaining,
    )
    return Outcome(code=200, body=body, revision=revision)


def delete_some(core: Core, ctx: Context, target: Target, records: Iterable[Record], options: DeleteOptions) -> int:
    """Delete *records*, each as a step of its own; returns the newest revision that this made."""
    revision = 0
    for record in records:
        item = dataclasses.replace(target, namespace=record.key.namespace, name=record.key.name)
        try:
            outcome = delete(core, ctx, item, options)
        except StatusError as error:
            if error.code == 404:
                continue
            raise
        core.store.end_step()
        revision = max(revision, outcome.revision)
    return revision
