"""Checks each deletion by the garbage collector against the server's state: no object with an owner
is collected.

The rule is simpler than the collector's: an owner keeps an object if it exists as the reference
names it and is not being deleted. An owner of an unknown kind, and a namespaced owner of a
cluster-scoped object, keep it for ever.
"""

from __future__ import annotations

from sliceplane.api.codec import decode_document
from sliceplane.api.meta import Document
from sliceplane.api.scheme import by_kind
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.server import Server
from sliceplane.watch.controller.base import Write

COLLECTOR = "garbage-collector"


def check_deletion(server: Server, actor: str, write: Write) -> None:
    """Checks *write* before it reaches the server. Raises ``Broken``."""
    if write.verb != "delete" or not actor.startswith(COLLECTOR):
        return
    preconditions = decode_document(write.body).get("preconditions") or {}
    where = f"{write.resource.plural}/{write.namespace}/{write.name}"
    if not preconditions.get("uid") or not preconditions.get("resourceVersion"):
        raise Broken(
            "no-premature-collection", write.name, f"{where} is deleted whatever it is now"
        )
    victim = server.find(write.resource, write.namespace, write.name)
    if victim is None or victim["metadata"]["resourceVersion"] != preconditions["resourceVersion"]:
        return  # it will be refused
    for owner in victim["metadata"].get("ownerReferences") or ():
        if _is_owner_alive(server, owner, write.namespace):
            raise Broken(
                "no-premature-collection",
                write.name,
                f"{where} goes, and {owner['kind']} {owner['name']} lives",
            )


def _is_owner_alive(server: Server, owner: Document, namespace: str) -> bool:
    resource = by_kind(owner["apiVersion"], owner["kind"])
    if resource is None or (resource.namespaced and not namespace):
        return True
    present = server.find(resource, namespace if resource.namespaced else "", owner["name"])
    return (
        present is not None
        and present["metadata"]["uid"] == owner["uid"]
        and not present["metadata"].get("deletionTimestamp")
    )
