"""Documents to apply, and who owns which of their fields afterwards."""

from __future__ import annotations

import json
from typing import Any

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def config_map(data: Any, **head: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", **head},
        "data": data,
    }


def slice_document(*addresses: str, version: str = "v1", **head: Any) -> Any:
    return {
        "apiVersion": f"discovery.k8s.io/{version}",
        "kind": "EndpointSlice",
        "metadata": {"name": "s", **head},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80}],
        "endpoints": [{"addresses": [address]} for address in addresses],
    }


def deployment(**spec: Any) -> Any:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
    }


def apply(api: Any, resource: Any, document: Any, manager: str = "one", **options: Any) -> Any:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    name = options.pop("name", None) or document["metadata"]["name"]
    outcome = api.patch(resource, name, raw, "apply", field_manager=manager, **options)
    return json.loads(outcome.body)


def refused(
    api: Any, resource: Any, name: str, document: Any, manager: str = "one", **options: Any
) -> Any:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return api.fails("patch", resource, name, raw, "apply", field_manager=manager, **options)


def owners(document: Any) -> dict[tuple[str, str, str], Any]:
    entries = document["metadata"].get("managedFields", [])
    assert all(entry["fieldsType"] == "FieldsV1" for entry in entries)
    return {
        (e["manager"], e["operation"], e.get("subresource", "")): e["fieldsV1"] for e in entries
    }
