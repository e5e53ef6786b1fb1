"""Bytes of all objects have a bound, which namespaces share."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.conftest import Api

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps, Namespaces, Pods
from sliceplane.api.users import AUTHENTICATED, MASTERS, User
from sliceplane.server.registry import offload
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, Context, WriteOptions

TENANT = User(name="tenant", groups=(AUTHENTICATED,))
ADMIN = User(name="admin", groups=(MASTERS, AUTHENTICATED))
#: of one object, and how many of them fit together
SIZE = 20_000
FIT = 20
#: kube-apiserver's, as ``tests/peers/test_policies_at_kube_apiserver.py`` sees it
TOO_LARGE = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "etcdserver: request is too large",
    "code": 500,
}


class Tenants:
    """A registry with room for ``FIT`` objects beside what a bootstrap makes, and two
    namespaces.
    """

    def __init__(self) -> None:
        used = Api().store.object_bytes.total
        self.api = Api(object_bytes_max=used + FIT * SIZE)
        for name in ("a", "b"):
            self.api.create(Namespaces, {"metadata": {"name": name}})

    def create(self, name: str, namespace: str, user: User = TENANT, size: int = SIZE) -> None:
        body = Body(document=document(name, size))
        context = Context(now=self.api.now, user=user)
        self.api.registry.create(
            context, self.api.target(ConfigMaps, namespace=namespace), body, WriteOptions()
        )
        self.api.commit()

    def fill(self, namespace: str, user: User = TENANT) -> StatusError:
        """Creates objects until one is refused."""
        for number in range(2 * FIT):
            try:
                self.create(f"c{number}", namespace, user)
            except StatusError as error:
                return error
        raise AssertionError("nothing was refused")

    def count(self, namespace: str) -> int:
        return self.api.store.count(ConfigMaps.storage_key, namespace)


def document(name: str, size: int = SIZE) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"text": "x" * size}}


@pytest.fixture
def tenants() -> Tenants:
    return Tenants()


def test_a_namespace_that_fills_itself_leaves_room_for_others(tenants: Tenants) -> None:
    refused = tenants.fill("a")
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.message.startswith(
        f'configmaps "c{tenants.count("a")}" is forbidden: the objects of namespace a have'
    )
    assert "--quota-backend-bytes" in refused.message
    assert tenants.count("a") <= FIT // 2 + 1
    tenants.create("other", "b")
    tenants.api.store.check()


def test_what_adds_no_bytes_is_never_refused(tenants: Tenants) -> None:
    tenants.fill("a")
    api = tenants.api
    context = Context(now=api.now, user=TENANT)
    target = api.target(ConfigMaps, "c0", "a")
    with pytest.raises(StatusError, match="share of the"):
        api.registry.update(
            context, target, Body(document=document("c0", 2 * SIZE)), WriteOptions()
        )
    api.registry.update(context, target, Body(document=document("c0", SIZE // 2)), WriteOptions())
    api.commit()
    before = tenants.count("a")
    for number in range(3):
        api.delete(ConfigMaps, f"c{number}", namespace="a")
    tenants.create("again", "a")
    assert tenants.count("a") == before - 2
    api.store.check()


def test_an_administrator_may_use_all_that_is_left_and_then_gets_the_error_of_etcd(
    tenants: Tenants,
) -> None:
    refused = tenants.fill("a", ADMIN)
    assert tenants.count("a") >= FIT - 3
    assert (refused.code, refused.reason) == (500, "")
    assert refused.message == "etcdserver: mvcc: database space exceeded"


def test_a_write_that_is_worked_out_elsewhere_has_the_same_bound(tenants: Tenants) -> None:
    tenants.fill("a")
    api = tenants.api
    context, target = Context(now=api.now, user=TENANT), api.target(ConfigMaps, namespace="a")

    def run(core: Any) -> Any:
        return Registry.around(core).create(
            context, target, Body(document=document("late")), WriteOptions()
        )

    basis = api.registry.gather_input(context, target)
    done = offload.work_out(basis, run)
    with pytest.raises(StatusError, match="share of the") as refused:
        api.registry.apply_result(context, basis, done, target, dry_run=False)
    assert refused.value.code == 403
    assert not api.store.take_staged(), "nothing of it is staged"


def test_bytes_are_counted_again_from_what_storage_remembers(tenants: Tenants) -> None:
    tenants.fill("a")
    store = tenants.api.store
    before = {namespace: store.object_bytes.used_by(namespace) for namespace in store.object_bytes}
    store.replace(list(store.history()), store.revision, 1)
    assert before == {
        namespace: store.object_bytes.used_by(namespace) for namespace in store.object_bytes
    }
    store.check()


def test_an_object_that_its_defaults_make_too_large_gets_the_status_of_kube_apiserver() -> None:
    """A Pod of 20,000 containers: 0.6 MB as sent, 9 MB with its defaults and the record of its
    fields.
    """
    api = Api()
    context, target = Context(now=api.now, user=ADMIN), api.target(Pods, namespace="default")
    containers = [{"name": f"c{number}", "image": "a"} for number in range(20_000)]
    pod = {"metadata": {"name": "large"}, "spec": {"containers": containers}}

    def run(core: Any) -> Any:
        return Registry.around(core).create(context, target, Body(document=pod), WriteOptions())

    foreseen = offload.work_out(api.registry.gather_input(context, target), run)
    # as the server does: once more on all that the first one looked at (PriorityClasses)
    basis = api.registry.gather_input(context, target, foreseen.keys, foreseen.collections)
    done = offload.work_out(basis, run)
    assert not done.changes, "it is not carried to the server"
    with pytest.raises(StatusError) as refused:
        api.registry.apply_result(context, basis, done, target, dry_run=False)
    assert refused.value.status() == TOO_LARGE
    assert not api.store.take_staged()
