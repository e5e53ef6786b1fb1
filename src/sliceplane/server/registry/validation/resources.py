"""Rules of what a Pod and its containers ask for: amounts, devices (resource claims), how they are
resized.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go). Where Go ranges over a map, names are taken in
alphabetical order here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, Final, cast

import msgspec

from sliceplane.api.errors import (
    FieldErrors,
    duplicate,
    forbidden_field,
    invalid_value,
    missing_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.quantity import exact, quantity_of
from sliceplane.kit.containers import remembered
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.server.registry.metadata import in_go
from sliceplane.server.registry.validation.rules import (
    NOT_NEGATIVE,
    Field,
    Rules,
    among,
    check_unique,
    each,
    of_form,
)
from sliceplane.server.registry.validation.security import containers_of

#: quantities by name, as they were written
Amounts = Mapping[str, str | int]
#: Characters of the names of a Pod's claims that one message lists; upstream has no bound.
CLAIM_LIST_CHARACTERS_MAX: Final = 4096
#: limits and requests of all containers of a Pod together: schedulers and quotas add them up with
#: each change of a Pod. Upstream's bound is the size of an object in etcd.
AMOUNTS_MAX: Final = 4096
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_OF_PODS: Final = ("cpu", "hugepages-", "memory")
_COUNTED: Final = (
    *("pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps"),
    *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
)
#: names that the system knows, some of them in quotas alone
_STANDARD: Final = frozenset(
    (
        *(prefix + name for prefix in ("", "requests.", "limits.") for name in _OF_CONTAINERS),
        *("storage", "requests.storage"),
        *_COUNTED,
    )
)
_HUGE: Final = "hugepages-"
_DEFAULT_DOMAIN: Final = "kubernetes.io/"
_CLAIMED: Final = "must be one of the names in pod.spec.resourceClaims"
_RESIZED: Final = ("cpu", "memory")
_RESIZE_POLICIES: Final = ("NotRequired", "RestartContainer")


def count_amounts(spec: Document) -> int:
    """Limits and requests of a Pod and its containers."""
    return sum(
        len(amounts)
        for resources in (
            spec.get("resources", {}),
            *(one.get("resources", {}) for _, one in containers_of("", spec)),
        )
        for amounts in (resources.get("limits", ()), resources.get("requests", ()))
    )


class ClaimNames(msgspec.Struct, frozen=True):
    """Names of a Pod's resource claims, and how a message lists them: sorted once, not for each
    complaint.
    """

    names: frozenset[str] = frozenset()
    listed: str = " which is empty"


NO_CLAIMS: Final = ClaimNames()


def claim_names(claims: list[Document]) -> ClaimNames:
    names = frozenset(claim["name"] for claim in claims if claim.get("name"))
    return (
        ClaimNames(names, f": {', '.join(sorted(names))}"[:CLAIM_LIST_CHARACTERS_MAX])
        if names
        else NO_CLAIMS
    )


_CLAIM_NAME: Final = Rules(Field("name", required=True, form=check_dns_label))
_CLAIM_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")


def check_claims_of_pod(path: str, claims: list[Document]) -> FieldErrors:
    """``resourceClaims`` of a Pod."""
    seen: set[str] = set()

    def claim_errors(where: str, claim: Document) -> FieldErrors:
        errors = check_unique(f"{where}.name", claim.get("name", ""), seen) or _CLAIM_NAME(
            where, claim
        )
        seen.discard("")
        present = [member for member in _CLAIM_SOURCES if member in claim]
        if len(present) != 1:
            detail = (
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
                if present
                else "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            )
            rendered = in_go(claim, "name", *_CLAIM_SOURCES, name="")
            errors.append(invalid_value(where, rendered, detail))
        for member in present:
            errors += of_form(f"{where}.{member}", claim[member], check_dns_subdomain)
        return errors

    return each(path, claims, claim_errors)


def check_resources(path: str, resources: Document, claims: ClaimNames) -> FieldErrors:
    """The resources of a container."""
    return _check_resources(path, resources, claims, _container_name)


def _check_resources(
    path: str,
    resources: Document,
    claims: ClaimNames,
    check_name: Callable[[str, str], FieldErrors],
) -> FieldErrors:
    errors: FieldErrors = []
    limits: Document = resources.get("limits", {})
    requests: Document = resources.get("requests", {})
    for member, amounts in (("limits", limits), ("requests", requests)):
        for name in until_error_limit(errors, sorted(amounts)):
            where = f"{path}.{member}[{name}]"
            errors += check_name(where, name) + check_amount(where, name, amounts[name])
            if member == "requests":
                errors += _within_limit(path, name, amounts[name], limits.get(name))
            errors += _pages(where, name, amounts[name])
    names = limits.keys() | requests.keys()
    if any(map(_is_huge, names)) and not names & {"cpu", "memory"}:
        errors.append(forbidden_field(path, "HugePages require cpu or memory"))
    return errors + _claims(f"{path}.claims", resources.get("claims", []), claims)


def check_amount(path: str, name: str, quantity: Any) -> FieldErrors:
    number = exact(quantity)
    errors = [invalid_value(path, text_of(quantity), NOT_NEGATIVE)] if number < 0 else []
    # As upstream: what is finer than a thousandth is rounded up.
    if (
        number.denominator != 1
        and (number * 1000).__ceil__() % 1000
        and (name in _COUNTED or is_extended(name))
    ):
        errors.append(invalid_value(path, text_of(quantity), "must be an integer"))
    return errors


def _pages(path: str, name: str, quantity: Any) -> FieldErrors:
    if not _is_huge(name):
        return []
    size = name.removeprefix(_HUGE)
    page = (
        exact(size)
        if re.fullmatch(r"\+?[0-9.]*[0-9][0-9.]*[KMGTPE]i|\+?[0-9]+[kMGTPE]?", size)
        else 0
    )
    if page > 0 and page.denominator == 1 and not exact(quantity).__ceil__() % page:
        return []
    detail = f"{text_of(quantity)} is not positive integer multiple of {name}"
    return [invalid_value(path, text_of(quantity), detail)]


def _resource_name(path: str, name: str) -> FieldErrors:
    errors = of_form(path, name, check_qualified_name)
    is_standard = "/" in name or name in _STANDARD or name.startswith((_HUGE, f"requests.{_HUGE}"))
    if not errors and not is_standard:
        errors.append(
            invalid_value(path, name, "must be a standard resource type or fully qualified")
        )
    return errors


def _container_name(path: str, name: str) -> FieldErrors:
    if name in _OF_CONTAINERS:
        return []
    errors = _resource_name(path, name)
    if "/" not in name and not _is_huge(name):
        errors.append(invalid_value(path, name, "must be a standard resource for containers"))
    elif not _is_native(name) and not is_extended(name):
        errors.append(invalid_value(path, name, "doesn't follow extended resource name standard"))
    return errors


def _pod_name(path: str, name: str) -> FieldErrors:
    errors = _resource_name(path, name)
    return errors if errors or is_of_pods(name) else among(path, name, _OF_PODS)


def is_of_pods(name: str) -> bool:
    """Returns True if a Pod as a whole can have an amount of it."""
    return name in _RESIZED or _is_huge(name)


def _is_huge(name: str) -> bool:
    return name.startswith(_HUGE)


def _is_native(name: str) -> bool:
    return "/" not in name or _DEFAULT_DOMAIN in name


@remembered(4096)
def is_extended(name: str) -> bool:
    return (
        not _is_native(name)
        and not name.startswith("requests.")
        and not check_qualified_name(f"requests.{name}")
    )


def _within_limit(path: str, name: str, request: Any, limit: Any) -> FieldErrors:
    overcommits = _is_native(name) and not _is_huge(name)
    if limit is None:
        detail = "Limit must be set for non overcommitable resources"
        return [] if overcommits else [required(f"{path}.limits", detail)]
    if request == limit:
        return []
    requested, allowed = exact(request), exact(limit)
    if requested == allowed or (overcommits and requested < allowed):
        return []
    relation = "less than or equal to" if overcommits else "equal to"
    return [
        invalid_value(
            f"{path}.requests",
            text_of(request),
            f"must be {relation} {name} limit of {text_of(limit)}",
        )
    ]


def _claims(path: str, claims: list[Document], of_pod: ClaimNames) -> FieldErrors:
    errors: FieldErrors = []
    seen: set[str] = set()
    #: how many requests of a claim were named, each for itself
    requests: dict[str, int] = {}
    for index, claim in until_error_limit(errors, enumerate(claims)):
        where = f"{path}[{index}]"
        name = claim.get("name", "")
        request = claim.get("request", "")
        if not name:
            errors.append(required(where))
            continue
        key = f"{name}/{request}" if request else name
        if name in seen:
            errors.append(duplicate(where, name))
        else:
            errors += of_form(f"{where}.request", request, check_dns_label) if request else []
            if key in seen:
                errors.append(duplicate(where, key))
            elif request:
                requests[name] = requests.get(name, 0) + 1
            else:
                errors += [duplicate(where, name)] * min(
                    requests.get(name, 0), _DUPLICATES_REPORTED_MAX
                )
            seen.add(key)
        if name not in of_pod.names:
            errors.append(missing_value(where, name, f"{_CLAIMED}{of_pod.listed}"))
    return errors


#: a claim as a whole after so many of its requests is so many mistakes
_DUPLICATES_REPORTED_MAX: Final = 1000


def check_resize(path: str, policies: list[Document], restart_policy: str) -> FieldErrors:
    """As upstream: the list is named, not its entry."""
    seen: set[str] = set()

    def policy_errors(where: str, policy: Document) -> FieldErrors:
        name = policy.get("resourceName", "")
        restart = policy.get("restartPolicy", "")
        errors = check_unique(where, name, seen)
        for value, supported in ((name, _RESIZED), (restart, _RESIZE_POLICIES)):
            errors += among(path, value, supported) if value else [required(path)]
        if restart_policy == "Never" and restart != "NotRequired":
            detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
            errors.append(invalid_value(path, restart, detail))
        return errors

    return each(path, policies, policy_errors)


def check_pod_resources(path: str, spec: Document, claims: ClaimNames) -> FieldErrors:
    """``resources`` of a Pod as a whole (KEP-2837)."""
    resources: Document = spec["resources"]
    if spec.get("os", {}).get("name") == "windows":
        return [forbidden_field(path, "may not be set for a windows pod")]
    errors: FieldErrors = []
    if "claims" in resources:
        errors.append(
            forbidden_field(f"{path}.claims", "claims may not be set for Resources at pod-level")
        )
    errors += _check_resources(path, resources, claims, _pod_name)
    for member, is_compared in (("requests", lambda _name: True), ("limits", _is_huge)):
        whole = resources.get(member, {})
        together = sum_of_containers(spec, member)
        for name in until_error_limit(errors, sorted(together.keys() & whole.keys())):
            if is_compared(name) and exact(together[name]) > exact(whole[name]):
                detail = (
                    f"must be greater than or equal to aggregate container {member} of "
                    f"{together[name]}"
                )
                errors.append(
                    invalid_value(f"{path}.{member}[{name}]", text_of(whole[name]), detail)
                )
    limits = resources.get("limits", {})
    for index, container in until_error_limit(errors, enumerate(spec.get("containers", ()))):
        own = container.get("resources", {}).get("limits", {})
        for name in until_error_limit(errors, sorted(own.keys() & limits.keys())):
            if exact(own[name]) > exact(limits[name]):
                detail = f"must be less than or equal to pod limits of {text_of(limits[name])}"
                where = f"{path}.containers[{index}][{name}].limits"
                errors.append(invalid_value(where, text_of(own[name]), detail))
    return errors


def amounts_of_containers(spec: Document, member: str) -> dict[str, Fraction]:
    """Returns what the containers of a Pod ask for together; *member*: limits or requests."""
    return total_amounts(
        [_amounts(container, member) for container in spec.get("containers", ())],
        [
            (_amounts(container, member), container.get("restartPolicy") == "Always")
            for container in spec.get("initContainers", ())
        ],
    )


def _amounts(container: Document, member: str) -> Amounts:
    return cast(Amounts, container.get("resources", {}).get(member, {}))


def total_amounts(
    containers: Iterable[Amounts], init: Iterable[tuple[Amounts, bool]]
) -> dict[str, Fraction]:
    """Sums up what the containers of a Pod ask for (kubernetes.io, Pods, Init containers: resource
    sharing; KEP-0753). *init*: each init container's amounts, and whether it stays.

    Containers that run side by side are added up, and init containers that stay (sidecars) with
    them. An init container that ends runs beside the sidecars that were started before it, so the
    Pod needs the larger of the two amounts.
    """
    together: dict[str, Fraction] = {}
    for amounts in containers:
        _add(together, amounts)
    sidecars: dict[str, Fraction] = {}
    peaks: dict[str, Fraction] = {}
    for amounts, stays in init:
        if stays:
            _add(together, amounts)
            _add(sidecars, amounts)
        for name in amounts:
            beside = (
                sidecars[name] if stays else sidecars.get(name, Fraction()) + exact(amounts[name])
            )
            peaks[name] = max(peaks.get(name, beside), beside)
    return {
        name: max(together.get(name, Fraction()), peaks.get(name, Fraction()))
        for name in {**together, **peaks}
    }


def _add(sums: dict[str, Fraction], amounts: Amounts) -> None:
    for name, quantity in amounts.items():
        sums[name] = sums.get(name, Fraction()) + exact(quantity)


def sum_of_containers(spec: Document, member: str) -> dict[str, str]:
    """Returns the same as quantities; binary ones if a container has one."""
    binary = {
        name
        for list_ in ("containers", "initContainers")
        for container in spec.get(list_, ())
        for name, amount in _amounts(container, member).items()
        if str(amount)[-1] == "i"
    }
    return {
        name: quantity_of(number, binary=name in binary)
        for name, number in amounts_of_containers(spec, member).items()
    }


def text_of(quantity: Any) -> str:
    """A quantity as upstream writes it."""
    return quantity_of(exact(quantity), binary=str(quantity).endswith("i"))
