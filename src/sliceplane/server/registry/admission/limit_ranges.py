"""LimitRange: default requests and limits of the containers of a new Pod, and their bounds.

Only resources that a LimitRange names are checked. Defaults come from all LimitRanges of the
namespace, in the order of names; then each of them is a separate bound.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sliceplane.api.errors import AND_MORE, ERRORS_MAX, StatusError, until_error_limit
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import LimitRanges, Pods
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.registry.validation.resources import amounts_of_containers
from sliceplane.server.store.mvcc import Store

_ANNOTATION: Final = "kubernetes.io/limit-ranger"
#: limit of the defaults added to a Pod: many containers times many defaults exceed both
ADDED_CHARACTERS_MAX: Final = 1 << 20
_CONTAINERS: Final = (("containers", "container"), ("initContainers", "init container"))

Amounts = dict[str, str]


def admit_pod(store: Store, document: Document) -> None:
    """Sets defaults, in place.  Raises the 403 ``StatusError`` of the first LimitRange that is
    exceeded.
    """
    ranges = _ranges(store, document["metadata"]["namespace"])
    if not ranges:
        return
    _apply_defaults(document, ranges)
    _check_bounds(document, ranges)


def check_bounds(store: Store, document: Document) -> None:
    """Checks a Pod whose resources change.  Raises the same."""
    _check_bounds(document, _ranges(store, document["metadata"]["namespace"]))


def _ranges(store: Store, namespace: str) -> list[Document]:
    return [document_of(record) for record in store.iter_latest(LimitRanges.storage_key, namespace)]


def _check_bounds(document: Document, ranges: list[Document]) -> None:
    for limits in ranges:
        problems = [
            problem
            for item in limits["spec"]["limits"]
            for problem in _problems(document["spec"], item)
        ]
        if problems:
            raise _refused(document, problems)


def _refused(document: Document, problems: list[str]) -> StatusError:
    distinct = list(dict.fromkeys(problems))[:ERRORS_MAX]
    if len(problems) >= ERRORS_MAX:
        distinct.append(AND_MORE)
    why = distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
    return refused(Pods, document, why)


# Defaults


def _apply_defaults(document: Document, ranges: list[Document]) -> None:
    requests: Amounts = {}
    limits: Amounts = {}
    for limit_range in ranges:
        for item in limit_range["spec"]["limits"]:
            if item.get("type") == "Container":
                requests |= item.get("defaultRequest", {})
                limits |= item.get("default", {})
    plugged: list[str] = []
    remaining = ADDED_CHARACTERS_MAX
    for member, noun in _CONTAINERS:
        for container in document["spec"].get(member, ()):
            resources = container.setdefault("resources", {})
            for kind, defaults, word in (
                ("limits", limits, "limit"),
                ("requests", requests, "request"),
            ):
                missing = sorted(defaults.keys() - resources.get(kind, {}).keys())
                if missing:
                    remaining -= sum(len(name) + len(defaults[name]) for name in missing)
                    if remaining < 0:
                        why = (
                            "the defaults of its LimitRanges would add more than "
                            f"{ADDED_CHARACTERS_MAX} characters to it"
                        )
                        raise _refused(document, [why])
                    resources[kind] = {
                        **resources.get(kind, {}),
                        **{name: defaults[name] for name in missing},
                    }
                    plugged.append(f"{', '.join(missing)} {word} for {noun} {container['name']}")
    if plugged:
        head = document["metadata"]
        # As upstream, requests come before limits.
        plugged.sort(key=lambda sentence: " limit for " in sentence)
        head["annotations"] = {
            **head.get("annotations", {}),
            _ANNOTATION: f"LimitRanger plugin set: {'; '.join(plugged)}",
        }


# Bounds


def _problems(spec: Document, item: Document) -> list[str]:
    kind = item.get("type", "")
    if kind == "Pod":
        return _compare(item, kind, _total(spec, "requests"), _total(spec, "limits"))
    if kind != "Container":
        return []
    problems: list[str] = []
    for member, _ in _CONTAINERS:
        for container in until_error_limit(problems, spec.get(member, ())):
            resources = container.get("resources", {})
            problems += _compare(
                item, kind, resources.get("requests", {}), resources.get("limits", {})
            )
    return problems


def _compare(item: Document, kind: str, requests: Amounts, limits: Amounts) -> list[str]:
    problems: list[str] = []
    for name, bound in until_error_limit(problems, item.get("min", {}).items()):
        problems += _at_least(name, kind, bound, requests.get(name), limits.get(name))
    for name, bound in until_error_limit(problems, item.get("max", {}).items()):
        problems += _at_most(name, kind, bound, requests.get(name), limits.get(name))
    for name, bound in until_error_limit(problems, item.get("maxLimitRequestRatio", {}).items()):
        problems += _ratio(name, kind, bound, requests.get(name), limits.get(name))
    return problems


def _at_least(
    name: str, kind: str, bound: str, request: str | None, limit: str | None
) -> list[str]:
    text = f"minimum {name} usage per {kind} is {bound}"
    if request is None:
        return [f"{text}.  No request is specified"]
    if amount(request) < amount(bound):
        return [f"{text}, but request is {request}"]
    if limit is not None and amount(limit) < amount(bound):
        return [f"{text}, but limit is {limit}"]
    return []


def _at_most(name: str, kind: str, bound: str, request: str | None, limit: str | None) -> list[str]:
    text = f"maximum {name} usage per {kind} is {bound}"
    if limit is None:
        return [f"{text}.  No limit is specified"]
    if amount(limit) > amount(bound):
        return [f"{text}, but limit is {limit}"]
    if request is not None and amount(request) > amount(bound):
        return [f"{text}, but request is {request}"]
    return []


def _ratio(name: str, kind: str, bound: str, request: str | None, limit: str | None) -> list[str]:
    text = f"{name} max limit to request ratio per {kind} is {bound}"
    if request is None or not amount(request):
        return [f"{text}, but no request is specified or request is 0"]
    if limit is None or not amount(limit):
        return [f"{text}, but no limit is specified or limit is 0"]
    ratio = amount(limit) / amount(request)
    return [f"{text}, but provided ratio is {float(ratio):f}"] if ratio > amount(bound) else []


def _total(spec: Document, kind: str) -> Amounts:
    return {name: _format(number) for name, number in amounts_of_containers(spec, kind).items()}


def _format(total: Fraction) -> str:
    """Formats whole numbers plainly, others in thousandths."""
    return f"{int(total)}" if total == int(total) else f"{int(-(-total * 1000 // 1))}m"
