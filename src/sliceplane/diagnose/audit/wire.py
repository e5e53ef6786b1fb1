"""Just those members of Kubernetes' objects, and of audit events, that the audit looks at.

Metadata has ``managedFields`` here, which the projections of ``api`` leave out: the writer of
addresses is the manager that owns ``subsets`` (or ``endpoints``) in ``fieldsV1``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.core import EndpointSubset, ServiceSpec
from sliceplane.api.discovery import EndpointPort, SliceEndpoint
from sliceplane.api.meta import Projection

_ABSENT: Final = msgspec.Raw()


class OwnedFields(Projection, frozen=True, kw_only=True):
    """Of ``fieldsV1``: whether addresses are among the fields that a manager owns (an empty
    ``Raw``: they are not).
    """

    subsets: msgspec.Raw = msgspec.field(name="f:subsets", default=_ABSENT)
    endpoints: msgspec.Raw = msgspec.field(name="f:endpoints", default=_ABSENT)


class ManagedFields(Projection, frozen=True, kw_only=True):
    manager: str = ""
    time: str | None = None
    fields: OwnedFields | None = msgspec.field(name="fieldsV1", default=None)

    @property
    def writes_addresses(self) -> bool:
        """True also where nothing tells which fields these are."""
        return self.fields is None or bool(self.fields.subsets) or bool(self.fields.endpoints)


class Metadata(Projection, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    managed_fields: tuple[ManagedFields, ...] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class WireService(Projection, frozen=True, kw_only=True):
    metadata: Metadata = Metadata()
    spec: ServiceSpec = ServiceSpec()


class WireEndpoints(Projection, frozen=True, kw_only=True):
    metadata: Metadata = Metadata()
    subsets: tuple[EndpointSubset, ...] | None = None


class WireSlice(Projection, frozen=True, kw_only=True):
    metadata: Metadata = Metadata()
    address_type: str = ""
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class LockRecord(Projection, frozen=True, kw_only=True):
    """What client-go's leader election writes into an annotation."""

    holder_identity: str = ""
    renew_time: str | None = None


# audit.k8s.io Events, of any version: these members were always there


class WireUser(Projection, frozen=True, kw_only=True):
    username: str = ""


class WireObject(Projection, frozen=True, kw_only=True):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""


class WireAnswer(Projection, frozen=True, kw_only=True):
    code: int = 0


class WireAuditEvent(Projection, frozen=True, kw_only=True):
    stage: str = ""
    verb: str = ""
    user: WireUser | None = None
    impersonated_user: WireUser | None = None
    user_agent: str = ""
    object_ref: WireObject | None = None
    response_status: WireAnswer | None = None
    stage_timestamp: str = ""
    request_received_timestamp: str = ""
