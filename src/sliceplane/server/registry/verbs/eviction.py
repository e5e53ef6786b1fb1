"""POST pods/NAME/eviction: deletes a Pod if its PodDisruptionBudget allows a disruption now
(kubernetes.io, API-initiated Eviction; pkg/registry/core/pod/storage/eviction.go).

The budget's status has the number of allowed disruptions. ``emulation.disruption`` computes it, and
the step that deletes the Pod decrements it. So concurrent evictions never exceed it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.errors import StatusError, bad_request, forbidden
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.scheme import PodDisruptionBudgets, Pods
from sliceplane.api.selectors import from_label_selector
from sliceplane.kit.times import format_time
from sliceplane.server.registry import metadata
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.decoding import decoded_as
from sliceplane.server.registry.documents import document_of, set_condition
from sliceplane.server.registry.types import Body, Context, Outcome, Target
from sliceplane.server.registry.verbs import delete as deleting
from sliceplane.server.registry.verbs.options import delete_options_of_document

_VERSION: Final = "policy/v1"
#: accepted versions; the second has the same members
_VERSIONS: Final = (_VERSION, "policy/v1beta1")
#: a budget with more evicted Pods that still exist allows no further eviction
DISRUPTED_MAX: Final = 2000
#: seconds after which a client may retry while the budget is computed
_RETRY_AFTER_S: Final = 10
_VIOLATES: Final = "Cannot evict pod as it would violate the pod's disruption budget."
_MULTIPLE_BUDGETS: Final = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support."
)
_TARGETED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def evict(call: WriteCall, body: Body) -> Outcome:
    """Raises StatusError: 400, 403, 404, 409 (preconditions), 422, 429 (the budget), 500 (several
    budgets).
    """
    core, ctx, target, options = call
    version = body.document.get("apiVersion", _VERSION)
    if version not in _VERSIONS:
        why = (
            f"the API version in the data ({version}) does not match the expected API version "
            f"({_VERSION})"
        )
        raise bad_request(why)
    eviction = decoded_as(_VERSION, "Eviction", body.document)
    head = eviction.get("metadata", {})
    metadata.match_namespace(target, head)
    if head.get("name", "") != target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    deletion = delete_options_of_document(eviction.get("deleteOptions", {}))
    deletion = replace(deletion, dry_run=deletion.dry_run or options.dry_run)
    record = core.latest(target)
    # Required order: before anything is staged.
    deleting.check_preconditions(Pods, record, deletion)
    pod = document_of(record)
    charged = None if _needs_no_budget(pod) else _charged(core, ctx, target, pod)
    if not deletion.dry_run:
        if charged is not None:
            core.put(PodDisruptionBudgets, charged)
        set_condition(pod, _TARGETED, ctx.now)
        core.put(Pods, pod)
    whole = replace(target, subresource="")
    outcome = deleting.delete(
        core, ctx, whole, replace(deletion, precondition_resource_version=None)
    )
    answer = codec.encode(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    )
    return Outcome(code=201, body=answer, revision=outcome.revision)


def _needs_no_budget(pod: Document) -> bool:
    """Returns True if the Pod does not serve: it is pending, has ended, or is being deleted."""
    phase = pod.get("status", {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]


def _charged(core: Core, ctx: Context, target: Target, pod: Document) -> Document | None:
    """Returns the budget after the eviction of *pod*; ``None``: there is none, or the eviction does
    not count.  Raises ``StatusError``.
    """
    records = core.store.iter_latest(PodDisruptionBudgets.storage_key, target.namespace)
    budgets = [budget for budget in map(document_of, records) if _selects(budget, pod)]
    if len(budgets) > 1:
        # As upstream, without a reason.
        raise StatusError(500, "", _MULTIPLE_BUDGETS)
    if not budgets:
        return None
    budget = budgets[0]
    status = budget.get("status", {})
    if not _is_ready(pod):
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        if (
            budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
            or healthy >= desired > 0
        ):
            return None
    _check_allowed(budget)
    remaining = status["disruptionsAllowed"] - 1
    status = {**status, "disruptionsAllowed": remaining}
    status["disruptedPods"] = {**status.get("disruptedPods", {}), target.name: format_time(ctx.now)}
    charged = {**budget, "status": status}
    if not remaining:
        condition = {
            "type": "DisruptionAllowed",
            "status": "False",
            "reason": "InsufficientPods",
            "message": "",
        }
        set_condition(
            charged,
            {**condition, "observedGeneration": status.get("observedGeneration", 0)},
            ctx.now,
        )
    return charged


def _check_allowed(budget: Document) -> None:
    """Raises the 403 or 429 ``StatusError``."""
    name = budget["metadata"]["name"]
    status = budget.get("status", {})
    allowed = status.get("disruptionsAllowed", 0)
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _too_many_requests(
            f"The disruption budget {name} is still being processed by the server.", _RETRY_AFTER_S
        )
    if allowed < 0:
        raise _cannot(name, "pdb disruptions allowed is negative")
    if len(status.get("disruptedPods", {})) > DISRUPTED_MAX:
        raise _cannot(
            name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if allowed:
        return
    failures = (one for one in status.get("conditions", ()) if one.get("reason") == "SyncFailed")
    failed = next((one for one in failures if one.get("type") == "DisruptionAllowed"), None)
    if failed is not None:
        why = (
            "does not allow evicting pods currently because it failed sync: "
            f"{failed.get('message', '')}"
        )
    else:
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        why = f"needs {desired} healthy pods and has {healthy} currently"
    raise _too_many_requests(f"The disruption budget {name} {why}", None)


def _too_many_requests(why: str, retry_after_s: int | None) -> StatusError:
    details: Document = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return StatusError(429, "TooManyRequests", _VIOLATES, details, retry_after_s=retry_after_s)


def _cannot(name: str, why: str) -> StatusError:
    # As upstream: the singular.
    return forbidden("poddisruptionbudget", PodDisruptionBudgets.group, name, why)


def _selects(budget: Document, pod: Document) -> bool:
    """Returns True if the budget selects the Pod.  No selector selects nothing, an empty one
    everything.
    """
    selector = budget["spec"].get("selector")
    if selector is None:
        return False
    return from_label_selector(msgspec.convert(selector, LabelSelector)).matches(
        pod["metadata"].get("labels")
    )


def _is_ready(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
