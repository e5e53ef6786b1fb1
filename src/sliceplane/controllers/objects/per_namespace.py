"""One object of a fixed name in every namespace that is not terminating: a ServiceAccount, and the
root certificate.

Level-driven: a missing object is created, a removed or damaged one is restored, and correct ones
cost no request. A terminating namespace is left alone; if its termination is not cached yet, the
server rejects the new object (NamespaceTerminating), which ends the attempt.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.core import ConfigMap, Namespace
from sliceplane.api.meta import Object
from sliceplane.api.scheme import ConfigMaps, Namespaces, Resource, ServiceAccounts
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write
from sliceplane.watch.controller.keyed import KeyedController

ACCOUNT_NAME: Final = "default"
CONFIG_MAP_NAME: Final = "kube-root-ca.crt"
_CA_MEMBER: Final = "ca.crt"
#: seconds until a created object is checked again: a new list may hide that it was created and
#: deleted
RECHECK_S: Final = 30.0


class PerNamespaceController(KeyedController):
    """The base of these controllers. Jobs are keyed by the namespace."""

    def __init__(self, name: str, alias: str, resource: Resource, object_name: str) -> None:
        watches = (
            Selection(Namespaces),
            Selection(resource, field_selector=f"metadata.name={object_name}"),
        )
        super().__init__(ControllerInfo(name=name, aliases=(alias,), watches=watches))
        self._resource = resource
        self._object_name = object_name
        #: namespaces that are not terminating
        self._namespaces: set[str] = set()
        #: objects by namespace
        self._objects: dict[str, Object] = {}

    @abstractmethod
    def desired(self) -> bytes:
        """Returns the object as JSON, without a namespace."""

    def repair(self, existing: Object) -> bytes:
        """Returns the JSON patch (RFC 6902) that corrects *existing*; empty if it is correct."""
        return b""

    def on_change(self, change: Change[Object], now: float) -> None:
        metadata = change.object.metadata
        if change.resource == Namespaces.key:
            namespace = metadata.name
            existing = change.new
            assert existing is None or isinstance(existing, Namespace), (
                f"{namespace} came as {type(existing).__name__}"
            )
            is_terminating = (
                existing is None
                or existing.metadata.deletion_timestamp
                or existing.status.phase == "Terminating"
            )
            (self._namespaces.discard if is_terminating else self._namespaces.add)(namespace)
        elif metadata.name == self._object_name:
            namespace = metadata.namespace
            if change.new is None:
                self._objects.pop(namespace, None)
            else:
                self._objects[namespace] = change.new
        else:
            # A host may have one informer for all objects of the kind.
            return
        self.enqueue(namespace, now)

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key not in self._namespaces:
            return ()
        existing = self._objects.get(key)
        if existing is None:
            # AlreadyExists: the cache is behind and will show it. NotFound: it will show the end of
            # the namespace.
            tolerated = ("AlreadyExists", "NotFound")
            return (
                Write(
                    verb="create",
                    resource=self._resource,
                    namespace=key,
                    body=self.desired(),
                    tolerate=tolerated,
                ),
            )
        patch = b"" if existing.metadata.deletion_timestamp else self.repair(existing)
        if not patch:
            return ()
        return (
            Write(
                verb="patch",
                resource=self._resource,
                namespace=key,
                name=self._object_name,
                body=patch,
                patch_type="json",
                tolerate=("NotFound",),
            ),
        )

    def finished(self, done: Done, now: float) -> None:
        """Schedules a check after a creation, which the watch may not show; all other results are
        watched.
        """
        if any(write.verb == "create" for write in done.job.writes):
            self.enqueue_after(done.job.key, RECHECK_S, now)

    def check(self) -> None:
        super().check()
        for namespace, existing in self._objects.items():
            key = f"{namespace}/{self._object_name}"
            assert existing.metadata.key == key, f"{existing.metadata.key} is kept as {key}"


class ServiceAccountController(PerNamespaceController):
    """A ServiceAccount ``default``, for Pods and tokens that name no other."""

    def __init__(self) -> None:
        super().__init__(
            "serviceaccount-controller", "serviceaccount", ServiceAccounts, ACCOUNT_NAME
        )

    def desired(self) -> bytes:
        return encode({"metadata": {"name": ACCOUNT_NAME}})


class RootCaPublisher(PerNamespaceController):
    """A ConfigMap ``kube-root-ca.crt`` with the authority that signed the API server's certificate;
    *authority* is PEM text. The value of ``ca.crt`` is corrected; other keys are left alone.
    """

    def __init__(self, authority: str) -> None:
        super().__init__(
            "root-ca-certificate-publisher-controller",
            "root-ca-cert-publisher",
            ConfigMaps,
            CONFIG_MAP_NAME,
        )
        self._authority = authority

    def desired(self) -> bytes:
        head = {
            "name": CONFIG_MAP_NAME,
            "annotations": {
                "kubernetes.io/description": "The authority that signed this API server's certificate."
            },
        }
        return encode({"metadata": head, "data": {_CA_MEMBER: self._authority}})

    def repair(self, existing: Object) -> bytes:
        assert isinstance(existing, ConfigMap), (
            f"{existing.metadata.key} came as {type(existing).__name__}"
        )
        if existing.data is None:
            return encode([{"op": "add", "path": "/data", "value": {_CA_MEMBER: self._authority}}])
        if existing.data.ca_crt == self._authority:
            return b""
        return encode([{"op": "add", "path": f"/data/{_CA_MEMBER}", "value": self._authority}])
