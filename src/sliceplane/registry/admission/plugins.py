"""Admission that an operator switches on, under upstream's names (``--enable-admission-plugins``).

``DenyServiceExternalIPs`` is off unless it is asked for, as upstream (CVE-2020-8554, KEP-2200):
node proxies see to it that an external IP takes nothing that is another's, but addresses outside the cluster are known
to nobody here, and who may ask for them is for an operator to say.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import forbidden
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, Services
from sliceplane.registry.config import RegistryConfig

DENY_SERVICE_EXTERNAL_IPS: Final = "DenyServiceExternalIPs"
OPTIONAL: Final = (DENY_SERVICE_EXTERNAL_IPS,)
#: what every server here does, so that asking for it changes nothing
ALWAYS: Final = ("LimitRanger", "NamespaceLifecycle", "ResourceQuota")


def admit(config: RegistryConfig, resource: Resource, new: Document, old: Document | None) -> None:
    """Of a Service itself, not of a subresource.  Raises the 403 ``StatusError``."""
    if resource is not Services or DENY_SERVICE_EXTERNAL_IPS not in config.admission_plugins:
        return
    kept = set((old or {}).get("spec", {}).get("externalIPs") or ())
    if not kept.issuperset(new["spec"].get("externalIPs") or ()):
        name = new["metadata"].get("name", "")
        raise forbidden(Services.plural, Services.group, name, "Use of external IPs is denied by admission control")
