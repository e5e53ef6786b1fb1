"""Accounts of the processes that a plane starts beside itself: each has its own rights, and a token
of an hour.

A child gets a kubeconfig of its own (``children/NAME.kubeconfig`` beside the administrator's, mode
0600). Its token is in a file that this module renews while the child runs, and removes with it. The
ServiceAccount and its roles are applied at every start, so rights that were added by hand are gone
then; the rules are those of the chart (``deploy/helm``), but for the Lease: a child may write the
one that has its name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import ServiceAccounts, by_kind
from sliceplane.consume.progress import LEASE_NAMESPACE
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.service import ServiceContext

NAMESPACE: Final = "kube-system"
FOLDER: Final = "children"
#: of a token, and between two of them: a server that is busy for long costs none its token
TOKEN_S: Final = 3600.0
RENEW_S: Final = 1200.0
_RETRY_S: Final = 10.0
_RBAC: Final = "rbac.authorization.k8s.io/v1"

_log = get_logger("plane")


class Rule(msgspec.Struct, frozen=True):
    """Verbs on resources of one API group, in every namespace."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


async def request_token(client: Client, namespace: str, account: str, duration_s: float) -> str:
    """Raises ``StatusError`` and ``Unreachable``."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(duration_s)},
    }
    write = Write(
        verb="create",
        resource=ServiceAccounts,
        namespace=namespace,
        name=account,
        subresource="token",
        body=encode(request),
    )
    answer: dict[str, Any] = json.loads(await client.perform(write))
    return str(answer["status"]["token"])


class ChildAccount:
    """``open`` once, then ``keep_fresh`` until cancelled, then ``close``."""

    def __init__(
        self, context: ServiceContext, name: str, rules: Sequence[Rule], lease: str
    ) -> None:
        """*lease*: the name of the child's own."""
        self._context = context
        self._client = context.client("system:admin", f"sliceplane-{name}")
        self._rules = tuple(rules)
        self._lease = lease
        self.name: Final = f"sliceplane-up-{name}"
        folder = context.kubeconfig.parent.absolute() / FOLDER
        self.kubeconfig: Final = folder / f"{name}.kubeconfig"
        self._token = folder / f"{name}.token"

    async def open(self) -> None:
        """Raises ``StartError``."""
        try:
            await self._renew()
            write_child_file(self.kubeconfig, self._kubeconfig())
        except StatusError as error:
            raise StartError(
                f"the account {NAMESPACE}/{self.name} cannot be written: {error}"
            ) from error
        except OSError as error:
            raise StartError(
                f"cannot write {error.filename or self.kubeconfig}: {error.strerror}"
            ) from error

    async def keep_fresh(self) -> None:
        pause_s = RENEW_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._renew()
                pause_s = RENEW_S
            except (StatusError, Unreachable, OSError) as error:
                _log.warning("a token is not renewed", account=self.name, problem=str(error))
                pause_s = _RETRY_S

    def close(self) -> None:
        for path in (self.kubeconfig, self._token):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # another child's files are there yet
            self.kubeconfig.parent.rmdir()

    async def _renew(self) -> None:
        """The token, and the account with its rights, which a user may have deleted or changed."""
        for document in account_documents(self.name, self._rules, self._lease):
            resource = by_kind(document["apiVersion"], document["kind"])
            assert resource is not None, "roles and accounts are served"
            meta = document["metadata"]
            await self._client.perform(
                Write(
                    verb="patch",
                    resource=resource,
                    namespace=meta.get("namespace", ""),
                    name=meta["name"],
                    body=encode(document),
                    patch_type="apply",
                    force=True,
                )
            )
        write_child_file(
            self._token, (await request_token(self._client, NAMESPACE, self.name, TOKEN_S)).encode()
        )

    def _kubeconfig(self) -> bytes:
        """JSON is YAML."""
        authority = base64.b64encode(self._context.authority.encode()).decode()
        cluster = {"server": self._context.url, "certificate-authority-data": authority}
        return encode(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "plane", "cluster": cluster}],
                "users": [{"name": self.name, "user": {"tokenFile": str(self._token)}}],
                "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": self.name}}],
                "current-context": "plane",
            }
        )


def account_documents(name: str, rules: Sequence[Rule], lease: str) -> tuple[Document, ...]:
    """Returns the documents of an account: the rights to read everywhere, and to write its one
    Lease.
    """
    everywhere: Document = {"name": name}
    of_leases: Document = {"name": name, "namespace": LEASE_NAMESPACE}
    # A create carries a name when it is an apply.
    own = _rule(Rule("coordination.k8s.io", ("leases",), ("create", "patch", "delete"))) | {
        "resourceNames": [lease]
    }
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": NAMESPACE},
        },
        {
            "apiVersion": _RBAC,
            "kind": "ClusterRole",
            "metadata": everywhere,
            "rules": [_rule(rule) for rule in rules],
        },
        _binding("ClusterRole", everywhere),
        {"apiVersion": _RBAC, "kind": "Role", "metadata": of_leases, "rules": [own]},
        _binding("Role", of_leases),
    )


def _rule(rule: Rule) -> Document:
    return {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}


def _binding(role_kind: str, metadata: Mapping[str, Any]) -> Document:
    name = metadata["name"]
    return {
        "apiVersion": _RBAC,
        "kind": f"{role_kind}Binding",
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    }


def write_child_file(path: Path, content: bytes) -> None:
    """Replaced at once, and never readable by another user."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)
