"""What a new cluster has before anyone asks for it: four namespaces, roles, and the API server's own Service.

Whatever exists is left as it is (reference, controllers.md section 6); the endpoints of
``default/kubernetes`` alone follow the advertised address.
"""

from __future__ import annotations

from sliceplane.api.gates import ENDPOINT_SLICE
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Namespaces, Resource, Services
from sliceplane.kit.ip import canonical, family, parse_strict
from sliceplane.registry.admission.namespaces import BOOTSTRAP_NAMESPACES
from sliceplane.registry.authorization.bootstrap import ensure_policy
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.create import create
from sliceplane.registry.documents import document_of
from sliceplane.registry.types import BY_THE_SERVER, Body, Context, Target, User
from sliceplane.registry.update import update

SYSTEM_USER = User(name="system:apiserver", groups=("system:masters",))
API_SERVICE_NAME = "kubernetes"
API_SERVICE_NAMESPACE = "default"
API_SERVICE_PORT = 443


def bootstrap(core: Core, now: float) -> int:
    """Create what is missing.  Returns the newest staged revision, to wait for."""
    ctx = Context(now=now, user=SYSTEM_USER)
    for name in BOOTSTRAP_NAMESPACES:
        _ensure(core, ctx, Namespaces, {"metadata": {"name": name}}, follow=())
    ensure_policy(core, ctx)
    if core.config.advertise_address and core.config.advertise_port:
        _api_service(core, ctx)
    return core.store.staged_revision


def _api_service(core: Core, ctx: Context) -> None:
    text = core.config.advertise_address
    address = parse_strict(text)
    assert address is not None, f"advertise_address {text!r} is not an IP address"
    port = core.config.advertise_port
    head = {"name": API_SERVICE_NAME, "namespace": API_SERVICE_NAMESPACE}
    service: Document = {
        "metadata": {**head, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": core.services.reserved_address,
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "protocol": "TCP", "port": API_SERVICE_PORT, "targetPort": port}],
        },
    }
    _ensure(core, ctx, Services, service, follow=())
    if address.is_loopback or address.is_link_local or address.is_unspecified:
        # No endpoint may have such an address; clients on this machine use the kubeconfig.
        return
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    endpoints: Document = {
        "metadata": {**head, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": canonical(text)}], "ports": ports}],
    }
    _ensure(core, ctx, EndpointsObjects, endpoints, follow=("subsets",))
    if not core.config.gates.enabled(ENDPOINT_SLICE):
        return
    slice_: Document = {
        "metadata": {**head, "labels": {"kubernetes.io/service-name": API_SERVICE_NAME}},
        "addressType": family(address),
        "endpoints": [{"addresses": [canonical(text)], "conditions": {"ready": True}}],
        "ports": ports,
    }
    _ensure(core, ctx, EndpointSlices, slice_, follow=("endpoints", "ports"))


def _ensure(core: Core, ctx: Context, resource: Resource, wanted: Document, follow: tuple[str, ...]) -> None:
    """Create the object, or bring the members *follow* of an existing one to what is wanted."""
    head = wanted["metadata"]
    namespace = head.get("namespace", "")
    target = Target(resource=resource, namespace=namespace, name=head["name"])
    record = core.store.latest(key_of(target))
    if record is not None and document_of(record).get("addressType") != wanted.get("addressType"):
        # addressType is immutable: another family is another object.
        core.remove(record)
        record = None
    if record is None:
        create(core, ctx, Target(resource=resource, namespace=namespace), Body(document=wanted), BY_THE_SERVER)
    elif follow:
        document = {**document_of(record), **{member: wanted[member] for member in follow}}
        update(core, ctx, target, Body(document=document), BY_THE_SERVER)
