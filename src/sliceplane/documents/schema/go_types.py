"""How Go names the types of fields, for the text ``cannot unmarshal number into Go struct field X of type T``.

All packages of Kubernetes that we serve from are called ``v1`` in Go.  The schemas do not tell which strings have a
type of their own there; the table names those that people meet.
"""

from __future__ import annotations

from typing import Final

from sliceplane.documents.schema.model import SchemaField, Struct, Type

_SCALARS: Final = {
    "any": "interface {}",
    "bool": "bool",
    "bytes": "[]uint8",
    "int32": "int32",
    "int64": "int64",
    "intOrString": "int32",
    "microTime": "string",
    "quantity": "resource.Quantity",
    "string": "string",
    "time": "string",
}

#: STRUCT.FIELD -> the named string type of the field, of its elements or of its values
_NAMED: Final = {
    "apps.DeploymentCondition.status": "v1.ConditionStatus",
    "apps.DeploymentCondition.type": "v1.DeploymentConditionType",
    "apps.DeploymentStrategy.type": "v1.DeploymentStrategyType",
    "core.Container.imagePullPolicy": "v1.PullPolicy",
    "core.ContainerPort.protocol": "v1.Protocol",
    "core.EndpointPort.protocol": "v1.Protocol",
    "core.NamespaceSpec.finalizers": "v1.FinalizerName",
    "core.NamespaceStatus.phase": "v1.NamespacePhase",
    "core.NodeAddress.type": "v1.NodeAddressType",
    "core.NodeCondition.status": "v1.ConditionStatus",
    "core.NodeCondition.type": "v1.NodeConditionType",
    "core.ObjectReference.uid": "types.UID",
    "core.PodCondition.status": "v1.ConditionStatus",
    "core.PodCondition.type": "v1.PodConditionType",
    "core.PodSpec.dnsPolicy": "v1.DNSPolicy",
    "core.PodSpec.restartPolicy": "v1.RestartPolicy",
    "core.PodStatus.phase": "v1.PodPhase",
    "core.Secret.type": "v1.SecretType",
    "core.ServicePort.protocol": "v1.Protocol",
    "core.ServiceSpec.externalTrafficPolicy": "v1.ServiceExternalTrafficPolicy",
    "core.ServiceSpec.internalTrafficPolicy": "v1.ServiceInternalTrafficPolicy",
    "core.ServiceSpec.ipFamilies": "v1.IPFamily",
    "core.ServiceSpec.ipFamilyPolicy": "v1.IPFamilyPolicy",
    "core.ServiceSpec.sessionAffinity": "v1.ServiceAffinity",
    "core.ServiceSpec.type": "v1.ServiceType",
    "discovery.EndpointPort.protocol": "v1.Protocol",
    "discovery.EndpointSlice.addressType": "v1.AddressType",
    "meta.ObjectMeta.uid": "types.UID",
    "meta.OwnerReference.uid": "types.UID",
}


def go_type(kind: Type, owner: Struct | None = None, field: SchemaField | None = None) -> str:
    """Go's name of *kind*, which is the type of *field* of *owner*, or the type of its elements."""
    match kind.kind:
        case "struct":
            return f"v1.{kind.name.rpartition('.')[2]}"
        case "list":
            return f"[]{go_type(kind.element, owner, field)}"
        case "map" if kind.element.kind == "quantity":
            return "v1.ResourceList"
        case "map":
            return f"map[string]{go_type(kind.element, owner, field)}"
        case "string" if owner is not None and field is not None:
            return _NAMED.get(f"{owner.name}.{field.name}", "string")
        case scalar:
            return _SCALARS[scalar]
