"""Which versions a server offers: upstream's ``--runtime-config``.

The text is ``KEY[=true|false]`` with commas between, where a key is a group and version
(``discovery.k8s.io/v1beta1``), one of its resources (``discovery.k8s.io/v1beta1/endpointslices``), or ``api/all``,
``api/ga``, ``api/beta`` for many at once; what is more exact counts more.  Only what is off by default can be switched:
everything else is what the rest of the process stands on.
"""

from __future__ import annotations

from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource

_TRUE = frozenset({"", "1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def served_resources(text: str) -> tuple[Resource, ...]:
    """All resources that a server with this flag offers, in the order of the scheme.

    Raises ``ValueError`` with a sentence about the text.
    """
    chosen = _parse(text)
    _refuse_unknown(chosen)
    return (*SERVED, *(resource for resource in OPTIONAL_RESOURCES if _is_on(resource, chosen)))


def _parse(text: str) -> dict[str, bool]:
    chosen: dict[str, bool] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in pair.partition("="))
        if value not in _TRUE | _FALSE:
            raise ValueError(f"invalid value {pair!r}: {value!r} is neither true nor false")
        chosen[key] = value in _TRUE
    return chosen


def _keys(resource: Resource) -> tuple[str, ...]:
    """What can switch a resource, the least exact first."""
    stage = "api/alpha" if "alpha" in resource.version else "api/beta" if "beta" in resource.version else "api/ga"
    return ("api/all", stage, resource.api_version, f"{resource.api_version}/{resource.plural}")


def _is_on(resource: Resource, chosen: dict[str, bool]) -> bool:
    on = False
    for key in _keys(resource):
        on = chosen.get(key, on)
    return on


def _refuse_unknown(chosen: dict[str, bool]) -> None:
    known = {"api/all", "api/alpha", "api/beta", "api/ga"}
    known.update(key for resource in (*SERVED, *OPTIONAL_RESOURCES) for key in _keys(resource))
    for key, on in chosen.items():
        if key not in known:
            raise ValueError(f"unknown api {key!r}")
        if not on and key != "api/all" and any(key in _keys(resource) for resource in SERVED):
            raise ValueError(f"{key!r} cannot be switched off")
