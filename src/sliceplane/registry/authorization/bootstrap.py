"""Roles and bindings of ``policy`` into the store, at every start.

What is missing is made.  What is there keeps all that an administrator added, and gets back rules and subjects
that it lacks if its annotation ``rbac.authorization.kubernetes.io/autoupdate`` says "true".
"""

from __future__ import annotations

from sliceplane.api.errors import StatusError, is_namespace_terminating
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ClusterRoles, Resource, Roles
from sliceplane.registry.authorization.coverage import missing
from sliceplane.registry.authorization.policy import AUTOUPDATE, SOURCES, gathered_rules, objects
from sliceplane.registry.authorization.rules import document_of_rule, rules_of
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.create import create
from sliceplane.registry.documents import document_of
from sliceplane.registry.types import BY_THE_SERVER, Body, Context, Target
from sliceplane.registry.update import update


def ensure_policy(core: Core, ctx: Context) -> None:
    for resource, wanted in objects():
        core.store.end_step()
        namespace = wanted["metadata"].get("namespace", "")
        target = Target(resource=resource, namespace=namespace, name=wanted["metadata"]["name"])
        record = core.store.latest(key_of(target))
        if record is None:
            _keep_additions(core, wanted)
            _create(core, ctx, Target(resource=resource, namespace=namespace), wanted)
            continue
        document = document_of(record)
        if document["metadata"].get("annotations", {}).get(AUTOUPDATE) == "true" and _complete(
            resource, document, wanted
        ):
            update(core, ctx, target, Body(document=document), BY_THE_SERVER)
    core.store.end_step()
    # A crash may have come between a role and those that gather it.
    core.gather(core.aggregation.all())


def _create(core: Core, ctx: Context, target: Target, wanted: Document) -> None:
    try:
        create(core, ctx, target, Body(document=wanted), BY_THE_SERVER)
    except StatusError as error:
        # The namespace was deleted: what it holds is made at the next start, with the namespace.
        if not is_namespace_terminating(error):
            raise


def _keep_additions(core: Core, wanted: Document) -> None:
    """``system:aggregate-to-edit`` is about to be made, and there is an ``edit`` that does not gather: rules that an
    administrator gave to that one stay, in what it is going to gather."""
    gathering = SOURCES.get(wanted["metadata"]["name"])
    record = core.store.latest(key_of(Target(resource=ClusterRoles, name=gathering))) if gathering else None
    if record is None:
        return
    before = document_of(record)
    if "aggregationRule" not in before:
        assert gathering is not None, "there is a role"
        lacking = missing(gathered_rules(gathering), rules_of(before))
        wanted["rules"] = [*wanted["rules"], *(document_of_rule(rule) for rule in lacking)]


def _made_aggregated(document: Document, wanted: Document) -> bool:
    """A role of the time before aggregation gathers from now on; who removed a label since has decided so."""
    if "aggregationRule" in document:
        return False
    document["aggregationRule"] = wanted["aggregationRule"]
    document["metadata"]["labels"] = {**document["metadata"].get("labels", {}), **wanted["metadata"]["labels"]}
    return True


def _complete(resource: Resource, document: Document, wanted: Document) -> bool:
    """Add what *document* lacks of *wanted*; returns whether that was anything."""
    if resource in (ClusterRoles, Roles):
        if "aggregationRule" in wanted:
            return _made_aggregated(document, wanted)
        lacking = [document_of_rule(rule) for rule in missing(rules_of(document), rules_of(wanted))]
        document["rules"] = [*document.get("rules", ()), *lacking]
        return bool(lacking)
    absent = [subject for subject in wanted["subjects"] if subject not in document.get("subjects", ())]
    document["subjects"] = [*document.get("subjects", ()), *absent]
    # To exchange a binding's role was a user's decision, too.
    return bool(absent) and document["roleRef"] == wanted["roleRef"]
