"""Definitions of versions that current releases no longer describe, told as differences from those they do.

``discovery.k8s.io/v1beta1`` is v1 with ``topology`` in the place of ``deprecatedTopology`` and ``zone``
(``pkg/apis/discovery/v1beta1/conversion.go``).  The notation is that of ``model``.
"""

from __future__ import annotations

from typing import Final

_OLD: Final = "discoveryV1beta1"
_OWN: Final = "discovery."
_GONE: Final = ("deprecatedTopology", "zone")

PACKAGES: Final = {_OLD: "io.k8s.api.discovery.v1beta1"}
KINDS: Final = {"discovery.k8s.io/v1beta1 EndpointSlice": f"{_OLD}.EndpointSlice"}
TOPOLOGY_HELP: Final = (
    "Labels of the place where the endpoint runs. In v1, topology.kubernetes.io/zone is the field zone, "
    "kubernetes.io/hostname the field nodeName, and the rest is deprecatedTopology."
)


def definitions(current: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The definitions to add to the *current* ones."""
    old: dict[str, dict[str, str]] = {}
    for name, fields in current.items():
        if name.startswith(_OWN):
            old[_old_name(name)] = {field: _old_spelling(spelling) for field, spelling in fields.items()}
    endpoint = old[f"{_OLD}.Endpoint"]
    for field in _GONE:
        del endpoint[field]
    endpoint["topology"] = "{}string"
    old[f"{_OLD}.Endpoint"] = dict(sorted(endpoint.items()))
    return old


def help_texts(current: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The help texts to add to the *current* ones."""
    old = {_old_name(name): dict(texts) for name, texts in current.items() if name.startswith(_OWN)}
    endpoint = old[f"{_OLD}.Endpoint"]
    for field in _GONE:
        del endpoint[field]
    endpoint["topology"] = TOPOLOGY_HELP
    return old


def _old_name(name: str) -> str:
    return f"{_OLD}.{name.removeprefix(_OWN)}"


def _old_spelling(spelling: str) -> str:
    return spelling.replace(_OWN, f"{_OLD}.", 1)
