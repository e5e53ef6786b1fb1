"""Keeps a ServiceAccount ``default`` in every namespace, for Pods and tokens that name no other."""

from __future__ import annotations

from sliceplane.api.codec import encode
from sliceplane.api.scheme import ServiceAccounts
from sliceplane.controllers.per_namespace import PerNamespaceController

ACCOUNT_NAME = "default"


class ServiceAccountController(PerNamespaceController):
    def __init__(self) -> None:
        super().__init__("serviceaccount-controller", "serviceaccount", ServiceAccounts, ACCOUNT_NAME)

    def wanted(self) -> bytes:
        return encode({"metadata": {"name": ACCOUNT_NAME}})
