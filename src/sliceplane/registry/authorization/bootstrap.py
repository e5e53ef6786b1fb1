"""Roles and bindings of ``policy`` into the store, at every start.

What is missing is made.  What is there keeps all that an administrator added, and gets back rules and subjects
that it lacks if its annotation ``rbac.authorization.kubernetes.io/autoupdate`` says "true".
"""

from __future__ import annotations

from sliceplane.api.meta import Document
from sliceplane.api.scheme import ClusterRoles, Resource
from sliceplane.registry.authorization.policy import AUTOUPDATE, objects
from sliceplane.registry.authorization.rules import document_of_rule, rules_of, uncovered
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.create import create
from sliceplane.registry.documents import document_of
from sliceplane.registry.types import BY_THE_SERVER, Body, Context, Target
from sliceplane.registry.update import update


def ensure_policy(core: Core, ctx: Context) -> None:
    for resource, wanted in objects():
        target = Target(resource=resource, name=wanted["metadata"]["name"])
        record = core.store.latest(key_of(target))
        if record is None:
            create(core, ctx, Target(resource=resource), Body(document=wanted), BY_THE_SERVER)
            continue
        document = document_of(record)
        if document["metadata"].get("annotations", {}).get(AUTOUPDATE) == "true" and _complete(
            resource, document, wanted
        ):
            update(core, ctx, target, Body(document=document), BY_THE_SERVER)


def _complete(resource: Resource, document: Document, wanted: Document) -> bool:
    """Add what *document* lacks of *wanted*; returns whether that was anything."""
    if resource is ClusterRoles:
        missing = [document_of_rule(rule) for rule in uncovered(rules_of(document), rules_of(wanted))]
        document["rules"] = [*document.get("rules", ()), *missing]
        return bool(missing)
    absent = [subject for subject in wanted["subjects"] if subject not in document.get("subjects", ())]
    document["subjects"] = [*document.get("subjects", ()), *absent]
    # A binding whose role was exchanged is somebody's decision, too.
    return bool(absent) and document["roleRef"] == wanted["roleRef"]
