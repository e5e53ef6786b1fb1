"""Rights: accounts that want more than they have, keep what was taken away, or make deciding about
rights dear.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import Attack, Figure, admin_context, alive, anonymous_context, bystander

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACED = f"{RBAC}/namespaces/default"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
_GROUP = "rbac.authorization.k8s.io"
_TO_VIEW = "rbac.authorization.k8s.io/aggregate-to-view"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_EVERYTHING = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]
#: watches of the account that is deleted, and for how long they are waited for
_WATCHES = 50
_WAIT_SECONDS = 10.0
_REVOKED_SECONDS_MAX = 2.0
_BINDINGS = 1500
_GATHERED = 300


@dataclass(slots=True)
class Client:
    """Somebody with a token, or the administrator."""

    session: aiohttp.ClientSession
    url: str

    async def ask(
        self, method: str, path: str, document: Any = None, **headers: str
    ) -> tuple[int, bytes]:
        raw = None if document is None else json.dumps(document).encode()
        sent = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        timeout = aiohttp.ClientTimeout(total=60)
        async with self.session.request(
            method, self.url + path, data=raw, headers=sent, timeout=timeout
        ) as answer:
            return answer.status, await answer.read()

    async def make(self, path: str, document: Any) -> Any:
        code, body = await self.ask("POST", path, document)
        assert code == 201, f"POST {path}: {code} {body[:300]!r}"
        return json.loads(body)


@contextlib.asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[tuple[PlaneProcess, Client, Client]]:
    """A plane, its administrator, and eve, who may write roles and bindings everywhere and holds
    hardly anything.
    """
    tokens = folder / "tokens.csv"
    tokens.write_text("te,eve,ue\n")
    with PlaneProcess(folder, "--token-auth-file", str(tokens)) as plane:
        as_admin = aiohttp.TCPConnector(ssl=admin_context(plane))
        as_eve = aiohttp.TCPConnector(ssl=anonymous_context(), limit=0)
        async with (
            aiohttp.ClientSession(connector=as_admin) as ours,
            aiohttp.ClientSession(connector=as_eve, headers={"authorization": "Bearer te"}) as hers,
        ):
            admin, eve = Client(ours, plane.url), Client(hers, plane.url)
            writes = ["get", "list", "watch", "create", "update", "patch", "delete"]
            kinds = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"]
            held = [
                {"apiGroups": [_GROUP], "resources": kinds, "verbs": writes},
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["create", "get"]},
            ]
            await admin.make(f"{RBAC}/clusterroles", {"metadata": {"name": "eve"}, "rules": held})
            await admin.make(f"{RBAC}/clusterrolebindings", _binding("eve"))
            yield plane, admin, eve


def _binding(
    name: str, role: str = "", kind: str = "ClusterRole", *subjects: dict[str, str]
) -> dict[str, Any]:
    reference = {"apiGroup": _GROUP, "kind": kind, "name": role or name}
    everybody = subjects or ({"kind": "User", "apiGroup": _GROUP, "name": "eve"},)
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": list(everybody)}


def _attempts() -> list[tuple[str, str, Any, dict[str, str]]]:
    """Method, path, document and headers; after none of them eve may do more."""
    admin, gatherer = f"{RBAC}/clusterroles/cluster-admin", f"{RBAC}/clusterroles/g"
    label = {"metadata": {"labels": {_TO_VIEW: "true"}}}
    typed = {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole"}
    admin_binding = f"{RBAC}/clusterrolebindings/cluster-admin"
    applied = typed | {"metadata": {"name": "cluster-admin", **label["metadata"]}}
    operations = [{"op": "add", "path": "/metadata/labels/x", "value": "y"}]
    review = {"spec": {"user": "root", "nonResourceAttributes": {"verb": "get", "path": "/"}}}
    patches: tuple[tuple[str, Any, str], ...] = (
        (admin, label, _MERGE),
        (f"{admin}?fieldManager=e&force=true", applied, _APPLY),
        (admin, operations, "application/json-patch+json"),
        (admin_binding, {"subjects": _binding("x")["subjects"]}, _MERGE),
        (f"{RBAC}/clusterroles/eve", {"rules": _EVERYTHING}, _MERGE),
        (f"{RBAC}/clusterrolebindings/eve", {"roleRef": {"name": "cluster-admin"}}, _MERGE),
    )
    posts: tuple[tuple[str, Any], ...] = (
        (f"{RBAC}/clusterroles", {"metadata": {"generateName": "e-"}, "rules": _EVERYTHING}),
        (f"{RBAC}/clusterroles?dryRun=All", {"metadata": {"name": "dry"}, "rules": _EVERYTHING}),
        (f"{NAMESPACED}/roles", {"metadata": {"name": "r"}, "rules": _EVERYTHING[:1]}),
        (f"{NAMESPACED}/rolebindings", _binding("b", "cluster-admin")),
        (f"{NAMESPACED}/rolebindings", _binding("b", "admin")),
        (f"{NAMESPACED}/rolebindings", _binding("b", "not-there-yet")),
        (f"{NAMESPACED}/rolebindings", _binding("b", "cluster-admin", "clusterrole")),
        (f"{RBAC}/clusterrolebindings", _binding("b", "cluster-admin")),
        (f"{RBAC}/clusterrolebindings", _binding("b", "system:node")),
        (f"{ACCOUNTS}/default/token", {"spec": {}}),
        ("/api/v1/namespaces/kube-system/serviceaccounts/root/token", {"spec": {}}),
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews", review),
        ("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "te"}}),
    )
    found: list[tuple[str, str, Any, dict[str, str]]] = [
        *(("PATCH", path, document, {"content_type": kind}) for path, document, kind in patches),
        *(("POST", path, document, {}) for path, document in posts),
        (
            "PUT",
            f"{RBAC}/clusterroles/new",
            {"metadata": {"name": "new"}, "rules": _EVERYTHING},
            {},
        ),
        ("PUT", f"{RBAC}/clusterroles/edit", {"metadata": {"name": "edit"}, "rules": []}, {}),
    ]
    for selector in (
        {},
        {"matchLabels": {}},
        {"matchExpressions": [{"key": "no/such", "operator": "DoesNotExist"}]},
    ):
        document = {
            "metadata": {"name": "g"},
            "aggregationRule": {"clusterRoleSelectors": [selector]},
        }
        found.append(("POST", f"{RBAC}/clusterroles", document, {}))
        found.append(("PUT", gatherer, document, {}))
        found.append(
            ("PATCH", f"{gatherer}?fieldManager=e", typed | document, {"content_type": _APPLY})
        )
    account = "system:serviceaccount:kube-system:root"
    actings: tuple[dict[str, str], ...] = (
        *(
            {"impersonate_user": user}
            for user in ("root", account, "system:serviceaccount:KUBE:x", "\u0435ve")
        ),
        {"impersonate_user": "eve", "impersonate_group": "system:masters"},
        {"impersonate_group": "system:masters"},
        {"impersonate_uid": "0", "impersonate_extra_a": "b"},
    )
    return [*found, *(("GET", "/api/v1/secrets", None, headers) for headers in actings)]


async def _may_read_secrets(client: Client) -> bool:
    question = {
        "spec": {
            "resourceAttributes": {"verb": "list", "resource": "secrets", "namespace": "default"}
        }
    }
    answer = await client.make("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
    return bool(answer["status"]["allowed"])


async def escalation(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as (plane, admin, eve):
        await admin.make(f"{NAMESPACED}/rolebindings", _binding("view", "view"))
        let_in = gained = 0
        for method, path, document, headers in _attempts():
            code, body = await eve.ask(method, path, document, **headers)
            if code < 400:
                let_in += 1
                print(f"  let in: {method} {path} {headers} {body[:200]!r}")
            gained += await _may_read_secrets(eve)
        # Taken away and made anew by her own hand, a role is no stronger.
        for path in (
            f"{RBAC}/clusterroles/cluster-admin",
            f"{RBAC}/clusterrolebindings/cluster-admin",
        ):
            await eve.ask("DELETE", path)
        for path, document in (
            (f"{RBAC}/clusterroles", {"metadata": {"name": "cluster-admin"}, "rules": _EVERYTHING}),
            (f"{RBAC}/clusterrolebindings", _binding("cluster-admin")),
        ):
            code, _ = await eve.ask("POST", path, document)
            let_in += code < 400
        gained += await _may_read_secrets(eve)
        return (
            Figure("attempts that were let in", let_in, f"of {len(_attempts()) + 2}", 0),
            Figure("times that the account had more rights", gained, "times", 0),
            alive(plane),
        )


async def wide_role(folder: Path) -> Sequence[Figure]:
    def values(letter: str) -> list[str]:
        return [f"{letter}{number}" for number in range(1000)]

    rule = {"apiGroups": values("g"), "resources": values("r"), "verbs": values("v")}
    async with attacked(folder) as (plane, _, eve), bystander(plane) as seen:
        longest = 0.0
        for turn in range(5):
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(15):
                    await eve.ask(
                        "POST",
                        f"{NAMESPACED}/roles",
                        {"metadata": {"name": f"r{turn}"}, "rules": [rule]},
                    )
            longest = max(longest, time.monotonic() - began)
            if longest > 5:
                plane.process.kill()
                break
        return (
            Figure("longest answer to a role of 24 KB", round(longest, 3), "s", 1.0),
            alive(plane),
            *seen.figures(),
        )


async def many_bindings(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as (plane, admin, eve):
        rules = [
            {"apiGroups": [""], "resources": [f"r{number}"], "verbs": ["get"]}
            for number in range(1000)
        ]
        await admin.make(f"{NAMESPACED}/roles", {"metadata": {"name": "large"}, "rules": rules})
        everybody = {"kind": "Group", "apiGroup": _GROUP, "name": "system:authenticated"}

        async def bind(first: int) -> None:
            for number in range(first, _BINDINGS, 8):
                await admin.make(
                    f"{NAMESPACED}/rolebindings", _binding(f"b{number}", "large", "Role", everybody)
                )

        await asyncio.gather(*(bind(first) for first in range(8)))
        async with bystander(plane) as seen:
            began = time.monotonic()
            for _ in range(20):
                await eve.ask("GET", "/api/v1/namespaces/default/secrets")
            each = (time.monotonic() - began) / 20
        return (
            Figure("refused request where everybody is bound", round(each * 1000, 1), "ms", 100),
            *seen.figures(),
        )


async def gathered_roles(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as (plane, _, eve), bystander(plane) as seen:
        spent = []
        for number in range(_GATHERED):
            rule = {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": [f"n{number}"],
                "verbs": ["get"],
            }
            document = {
                "metadata": {"name": f"c{number}", "labels": {_TO_VIEW: "true"}},
                "rules": [rule],
            }
            began = time.monotonic()
            await eve.make(f"{RBAC}/clusterroles", document)
            spent.append(time.monotonic() - began)
        last = sorted(spent[-50:])[25]
        return (
            Figure(
                f"write of a gathered role, after {_GATHERED}", round(last * 1000, 1), "ms", 200
            ),
            *seen.figures(),
        )


async def revoked_watches(folder: Path) -> Sequence[Figure]:
    async with attacked(folder) as (plane, admin, _):
        await admin.make(ACCOUNTS, {"metadata": {"name": "robot"}})
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}
        await admin.make(f"{NAMESPACED}/roles", {"metadata": {"name": "watches"}, "rules": [rule]})
        subjects = ({"kind": "ServiceAccount", "name": "robot", "namespace": "default"},)
        await admin.make(
            f"{NAMESPACED}/rolebindings", _binding("watches", "watches", "Role", *subjects)
        )
        token = (await admin.make(f"{ACCOUNTS}/robot/token", {"spec": {}}))["status"]["token"]
        connector = aiohttp.TCPConnector(ssl=anonymous_context(), limit=0)
        headers = {"authorization": f"Bearer {token}"}
        path = f"{plane.url}/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=60"
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            streams = [await session.get(path) for _ in range(_WATCHES)]
            assert all(stream.status == 200 for stream in streams)
            await admin.ask("DELETE", f"{ACCOUNTS}/robot")
            began = time.monotonic()
            reading = [asyncio.create_task(stream.read()) for stream in streams]
            done, pending = await asyncio.wait(reading, timeout=_WAIT_SECONDS)
            seconds = time.monotonic() - began
            for task in pending:
                task.cancel()
            told = sum(b'"code":401' in task.result() for task in done)
        return (
            Figure(
                "until all watches of a deleted account ended",
                round(seconds, 2),
                "s",
                _REVOKED_SECONDS_MAX,
            ),
            Figure("watches that went on", len(pending), f"of {_WATCHES}", 0),
            Figure("watches that ended without a reason", len(done) - told, "watches", 0),
            alive(plane),
        )


ATTACKS = (
    Attack(
        "rights-escalation",
        "writes of roles and bindings, impersonation and tokens, for rights one lacks",
        escalation,
    ),
    Attack(
        "rights-wide-role",
        "a role of 24 KB that stands for a thousand million combinations",
        wide_role,
    ),
    Attack(
        "rights-many-bindings",
        "a large role bound to everybody in one namespace, again and again",
        many_bindings,
    ),
    Attack(
        "rights-gathered-roles",
        "hundreds of ClusterRoles that the role view gathers",
        gathered_roles,
    ),
    Attack(
        "rights-revoked-watches",
        "watches that are open when their account is deleted",
        revoked_watches,
    ),
)
