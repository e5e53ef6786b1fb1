"""What a new cluster has before anyone asks for it: namespaces, roles, flow schemas, and the API server's own Service.

What exists is left as it is; only the endpoints of ``default/kubernetes`` follow the servers (``api_service``).
"""

from __future__ import annotations

from sliceplane.api.meta import Document
from sliceplane.api.scheme import Namespaces, Resource
from sliceplane.registry import api_service, service_addresses
from sliceplane.registry.authorization.bootstrap import ensure_policy
from sliceplane.registry.core import Core, key_of
from sliceplane.registry.create import create
from sliceplane.registry.flow_objects import ensure_flow_objects
from sliceplane.registry.kinds.namespace import BOOTSTRAP_NAMESPACES
from sliceplane.registry.types import BY_THE_SERVER, Body, Context, Target, User

SYSTEM_USER = User(name="system:apiserver", groups=("system:masters",))


def bootstrap(core: Core, now: float) -> int:
    """Create what is missing.  Returns the newest staged revision, to wait for."""
    ctx = Context(now=now, user=SYSTEM_USER)
    for name in BOOTSTRAP_NAMESPACES:
        _ensure(core, ctx, Namespaces, {"metadata": {"name": name}})
        core.store.end_step()
    ensure_policy(core, ctx)
    ensure_flow_objects(core, ctx)
    service_addresses.tend(core, ctx, quiet=True)
    api_service.reconcile(core, ctx)
    return core.store.staged_revision


def _ensure(core: Core, ctx: Context, resource: Resource, wanted: Document) -> None:
    """Create the object if there is none of its name."""
    head = wanted["metadata"]
    namespace = head.get("namespace", "")
    if core.store.latest(key_of(Target(resource=resource, namespace=namespace, name=head["name"]))) is None:
        create(core, ctx, Target(resource=resource, namespace=namespace), Body(document=wanted), BY_THE_SERVER)
