"""Creates an account for an agent in a cluster: applies its documents, requests a token, and builds
a kubeconfig.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from typing import Final, NamedTuple

from sliceplane.agent.policies import POLICY_GROUP, POLICY_KINDS
from sliceplane.agent.rights import grants
from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import ConfigMaps, Resource, by_kind
from sliceplane.consume.agents.grants import GRANT_ENTRIES_MAX
from sliceplane.consume.agents.registration import account_name
from sliceplane.consume.io.accounts import request_token
from sliceplane.kit.names import check_dns_label
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.connection import Connection

#: ConfigMap with the server's certificate authority in every namespace (KEP-1205,
#: "kube-root-ca.crt")
_ROOT_CA: Final = "kube-root-ca.crt"
_POLICIES: Final = {
    kind: Resource(kind=kind, group=POLICY_GROUP, plural=plural, namespaced=False)
    for kind, plural in POLICY_KINDS.items()
}
#: message for a server that does not serve these kinds
NO_POLICY: Final = (
    "this server has no ValidatingAdmissionPolicy, so none is made: a Sliceplane server checks "
    "writes of agents by "
    "itself, and elsewhere the external-endpoints-controller empties a slice that does not fit"
)


class NoGrant(Exception):
    """A sentence for the user."""


class Grant(NamedTuple):
    agent: str
    namespace: str
    services: tuple[str, ...]
    cidrs: tuple[str, ...]
    sees_nodes: bool

    def documents(self, *, with_policies: bool) -> tuple[Document, ...]:
        """Raises ``NoGrant``."""
        for noun, entries in (("Services", self.services), ("networks", self.cidrs)):
            if len(entries) > GRANT_ENTRIES_MAX:
                raise NoGrant(
                    f"{len(entries)} {noun} are too many for one agent: at most {GRANT_ENTRIES_MAX}"
                )
        for noun, name in (
            ("agent", self.agent),
            *(("Service", service) for service in self.services),
        ):
            for problem in check_dns_label(name):
                raise NoGrant(f"the name {name!r} of the {noun} {problem}")
        for cidr in self.cidrs:
            try:
                ipaddress.ip_network(cidr)
            except ValueError as error:
                raise NoGrant(f"--cidr: {error}") from error
        return grants(
            self.agent,
            self.namespace,
            self.services,
            cidrs=self.cidrs,
            sees_nodes=self.sees_nodes,
            with_policies=with_policies,
        )


async def serves_policies(client: Client) -> bool:
    """Returns False if the server reports that it has no ValidatingAdmissionPolicies, and True if
    that is unknown.
    """
    try:
        await client.list(Selection(_POLICIES["ValidatingAdmissionPolicyBinding"]), limit=1)
    except StatusError as error:
        return error.code != 404
    except Unreachable:
        pass
    return True


async def apply_grant(
    client: Client, connection: Connection, grant: Grant, duration_s: float, *, with_policies: bool
) -> str:
    """Applies the documents and returns a kubeconfig.  Raises ``StatusError``, ``Unreachable``,
    ``NoGrant``.
    """
    for document in grant.documents(with_policies=with_policies):
        kind = document["kind"]
        resource = _POLICIES.get(kind) or by_kind(document["apiVersion"], kind)
        assert resource is not None, f"a grant of an unknown kind {kind}"
        meta = document["metadata"]
        write = Write(
            verb="patch",
            resource=resource,
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            body=encode(document),
            patch_type="apply",
            force=True,
        )
        await client.perform(write)
    token = await request_token(client, grant.namespace, account_name(grant.agent), duration_s)
    return _kubeconfig(connection, grant, token, await _authority(client, grant.namespace))


async def _authority(client: Client, namespace: str) -> str:
    try:
        body = await client.get(ConfigMaps, namespace, _ROOT_CA)
    except StatusError as error:
        raise NoGrant(
            f"the server's certificate authority cannot be read ({_ROOT_CA}): {error}"
        ) from error
    return str(json.loads(body).get("data", {}).get("ca.crt", ""))


def _kubeconfig(connection: Connection, grant: Grant, token: str, authority: str) -> str:
    import yaml

    user = account_name(grant.agent)
    cluster: Document = {"server": connection.server}
    if connection.server.startswith("https:"):
        cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    if connection.server_hostname:
        cluster["tls-server-name"] = connection.server_hostname
    context = {"cluster": "cluster", "user": user, "namespace": grant.namespace}
    return str(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "cluster", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": user, "context": context}],
                "current-context": user,
            },
            sort_keys=False,
        )
    )
