"""The rows of the tables in ``faults``: a name, and the edits that plant it in a healthy world.

An edit names documents as ``Kind/name`` or ``Kind/namespace/name`` (all of a kind: ``Kind``), and
members behind a colon: ``Pod/cart-1:status.conditions[Ready].status``. A number is an index, ``*``
is every element of a list, and ``[A,B]`` are its elements of these types.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.diagnose.explain.world import (
    NEARLY,
    PLANTED,
    YOUNG,
    Doc,
    Fault,
    World,
    ago,
    owner,
    write_slice,
)

from sliceplane.diagnose.explain.question import ClientReference, ExplainQuestion

#: changes a world; if it returns a question, that is asked instead of why cart of shop fails
Edit = Callable[[World], object]
#: changes one Pod
PodEdit = Callable[[Doc], object]
_NAMESPACES = {
    **dict.fromkeys(("Node", "Namespace", "ServiceCIDR"), ""),
    "Lease": "kube-node-lease",
    "DaemonSet": "kube-system",
    "ConfigMap": "kube-system",
}
SLICE = "EndpointSlice/cart-x7k2p"
CART = "Service/cart"


def planted(code: str, name: str, *edits: Edit, by: type[Fault] = Fault) -> Edit:
    """A row: *edits* are the fault *code*, which must be named first."""
    plant = _plant(name, edits)
    PLANTED.append(by(code, plant))
    return plant


def nearly(codes: str, name: str | Edit, *edits: Edit, by: type[Fault] = Fault) -> Edit:
    """A row: *edits* look like each of *codes* and are none of them, so all must stay silent."""
    plant = _plant(name, edits) if isinstance(name, str) else name
    NEARLY.extend(by(code, plant) for code in codes.split())
    return plant


def too_young(code: str, name: str, *edits: Edit) -> None:
    """A row: *edits* are *code* if they last, and neither a fault nor well until then."""
    YOUNG.append(Fault(code, _plant(name, edits)))


def _plant(name: str, edits: tuple[Edit, ...]) -> Edit:
    def plant(world: World) -> ExplainQuestion | None:
        returned = [edit(world) for edit in edits]
        asked = [found for found in returned if isinstance(found, ExplainQuestion)]
        return asked[-1] if asked else None

    plant.__name__ = name
    return plant


def ask(kind: Any, name: str = "", namespace: str = "", **more: Any) -> Edit:
    """The question; a Pod is asked about in shop."""
    namespace = namespace or ("shop" if kind in ("pod", "service") else "")
    return lambda _: ExplainQuestion(kind, name, namespace, **more)


def ask_from(kind: Any, name: str, namespace: str = "") -> Edit:
    """The question of a client of cart."""
    client = ClientReference(kind, name, namespace) if namespace else ClientReference(kind, name)
    return ask("service", "cart", client=client)


EVERYTHING = ask("everything")


def do(function: Callable[..., object], *args: Any, **named: Any) -> Edit:
    """Calls *function* of the world; what it returns does not matter."""
    return lambda world: (function(world, *copy.deepcopy(args), **copy.deepcopy(named)), None)


def put(target: str, value: Any = None, /, **members: Any) -> Edit:
    """Sets the member that *target* names, or *members* of it."""
    return partial(_put, target=target, value=value, members=members)


def cut(target: str) -> Edit:
    """Takes the member out that *target* names."""
    path, _, last = target.rpartition(".")
    return lambda world: [found.pop(last) for found in members_of(world, path)]


def add(target: str, **content: Any) -> Edit:
    kind, namespace, name = _identity(target)
    return do(World.add, kind, namespace, name, **content)


def drop(target: str) -> Edit:
    kind, namespace, name = _identity(target)
    return do(World.drop, kind, namespace, name)


def refuse(plural: str) -> Edit:
    """The reader has no right to read them."""
    return lambda world: world.refuse.add(plural)


def pods(*edits: PodEdit) -> Edit:
    """Of all three Pods of cart, one after the other."""
    return lambda world: [
        edit(world.get("Pod", "shop", f"cart-{number}")) for number in range(3) for edit in edits
    ]


def pod(*edits: PodEdit) -> Edit:
    return lambda world: [edit(world.get("Pod", "shop", "cart-1")) for edit in edits]


def rewritten(world: World, name: str = "cart") -> None:
    """The controller has written what the Pods say now."""
    world.drop("EndpointSlice", "shop", f"{name}-x7k2p")
    write_slice(world, name)


def owned_by(target: str) -> Edit:
    """The object becomes the owner of all Pods."""

    def edit(world: World) -> None:
        references = [owner(world.get(*_identity(target)))]
        _put(world, "Pod:metadata.ownerReferences", references, {})

    return edit


def event(about: str, reason: str, message: str, seconds: float = 20, name: str = "") -> Edit:
    """A warning about an object of shop."""
    kind, _, of = about.partition("/")
    return add(
        f"Event/{name or f'{of}.1'}",
        type="Warning",
        reason=reason,
        message=message,
        lastTimestamp=ago(seconds),
        involvedObject={"kind": kind, "namespace": "shop", "name": of},
    )


def members_of(world: World, target: str) -> list[Any]:
    """The members that *target* names; a missing one is made."""
    which, _, path = target.partition(":")
    kind, namespace, name = _identity(which)
    found: list[Any] = [world.get(kind, namespace, name)] if name else list(world.all(kind))
    for step in filter(None, path.split(".")):
        found = [member for holder in found for member in _step(holder, step)]
    return found


def _step(holder: Any, step: str) -> Iterator[Any]:
    step, _, types = step.partition("[")
    if step == "*":
        yield from holder
    elif step.isdigit():
        yield holder[int(step)]
    elif types:
        yield from (entry for entry in holder[step] if entry["type"] in types[:-1].split(","))
    else:
        yield holder.setdefault(step, {})


def _put(world: World, target: str, value: Any, members: dict[str, Any]) -> None:
    if members:
        for found in members_of(world, target):
            found.update(copy.deepcopy(members))
        return
    which, _, path = target.partition(":")
    path, _, last = path.rpartition(".")
    for found in members_of(world, f"{which}:{path}"):
        found[int(last) if last.isdigit() else last] = copy.deepcopy(value)


def _identity(target: str) -> tuple[str, str, str]:
    kind, *names = target.partition(":")[0].split("/")
    namespace = names[0] if len(names) == 2 else _NAMESPACES.get(kind, "shop")
    return kind, namespace, names[-1] if names else ""
