"""Keeps a ConfigMap ``kube-root-ca.crt`` in every namespace: the authority that signed the API server's certificate.

What is under ``ca.crt`` is put right; other members that somebody adds are left alone.
"""

from __future__ import annotations

from sliceplane.api.codec import encode
from sliceplane.api.core import ConfigMap
from sliceplane.api.meta import Object
from sliceplane.api.scheme import ConfigMaps
from sliceplane.controllers.per_namespace import PerNamespaceController

CONFIG_MAP_NAME = "kube-root-ca.crt"
MEMBER = "ca.crt"


class RootCaPublisher(PerNamespaceController):
    """*authority* is PEM text."""

    def __init__(self, authority: str) -> None:
        super().__init__(
            "root-ca-certificate-publisher-controller", "root-ca-cert-publisher", ConfigMaps, CONFIG_MAP_NAME
        )
        self._authority = authority

    def wanted(self) -> bytes:
        head = {
            "name": CONFIG_MAP_NAME,
            "annotations": {"kubernetes.io/description": "The authority that signed this API server's certificate."},
        }
        return encode({"metadata": head, "data": {MEMBER: self._authority}})

    def repair(self, existing: Object) -> bytes:
        assert isinstance(existing, ConfigMap), f"{existing.metadata.key} came as {type(existing).__name__}"
        if existing.data is None:
            return encode([{"op": "add", "path": "/data", "value": {MEMBER: self._authority}}])
        if existing.data.ca_crt == self._authority:
            return b""
        return encode([{"op": "add", "path": f"/data/{MEMBER}", "value": self._authority}])
