"""What a relay refuses and ends: rights that are gone, clients that read nothing, loops, a parent that
is silent.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.relay.relaying import (
    ADMIN,
    IN_DEFAULT,
    SLICES,
    kubeconfig,
    relaying,
    tokens,
)
from tests.server.serving import Reply, Server, endpoint_slice, run_plane, watching
from tests.server.test_http_tokens import account
from tests.waiting import until

from sliceplane.api.scheme import EndpointSlices
from sliceplane.relay.io import children
from sliceplane.relay.io import parent as following
from sliceplane.server.io.plane import PlaneConfig
from sliceplane.server.store.hub import Hub
from sliceplane.watch.io.kubeconfig import from_file

__all__ = ["tokens"]
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


@pytest.fixture(scope="module")
def parent(tokens: Path) -> Iterator[Server]:
    with tokens.open("a") as file:
        file.write('node-token,system:node:one,3,"system:nodes"\n')
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    yield Server(plane)
    end()


def bind_reader(parent: Server, user: str) -> None:
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["watch"]}
    role = {"metadata": {"name": "reader"}, "rules": [rule]}
    assert parent.request("POST", f"{RBAC}/roles", role).code == 201
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": "default"}],
    }
    assert parent.request("POST", f"{RBAC}/rolebindings", binding).code == 201


def test_a_watch_ends_after_its_right_is_gone(
    parent: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "VERDICT_S", 1.0)
    token = account(parent, "reader")
    bind_reader(parent, "reader")
    with relaying(parent) as relay:
        opened = relay.connect(certificate=False)
        opened.request(
            "GET",
            f"{IN_DEFAULT}?watch=true&resourceVersion=0",
            headers={"authorization": f"Bearer {token}"},
        )
        answer = opened.getresponse()
        assert answer.status == 200
        assert parent.request("DELETE", f"{RBAC}/rolebindings/reader").code == 200
        last: dict[str, Any] = {}
        for line in answer:
            last = json.loads(line)
        assert (last["type"], last["object"]["code"]) == ("ERROR", 403)
        assert "reader" in last["object"]["message"]
        opened.close()


@pytest.mark.parametrize("trusted", [False, True])
def test_nodes_are_trusted_by_flag_alone(parent: Server, trusted: bool) -> None:
    with relaying(parent, trust_nodes=trusted) as relay:
        headers = {"authorization": "Bearer node-token"}
        path = f"{SLICES}?resourceVersion=0"
        theirs = parent.request("GET", path, certificate=False, **headers)
        ours = relay.request("GET", path, certificate=False, **headers)
        assert (ours.code, theirs.code) == (200 if trusted else 403, 403)
        written = relay.request("POST", IN_DEFAULT, {}, certificate=False, **headers)
        assert written.code == 403, "the parent decides about everything else"


def test_a_client_that_reads_nothing_is_cut_and_harms_nobody(
    parent: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Hub.subscribe.__kwdefaults__, "bound_bytes", 1 << 18)
    with relaying(parent) as relay, contextlib.ExitStack() as stack:
        body = endpoint_slice("large")
        version = parent.request("POST", IN_DEFAULT, body).json["metadata"]["resourceVersion"]
        path = f"{IN_DEFAULT}?watch=true&resourceVersion={version}"
        plain = stack.enter_context(socket.create_connection((relay.host, relay.port)))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf = stack.enter_context(relay.context().wrap_socket(plain, server_hostname=relay.host))
        deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: it\r\n\r\n".encode())
        mirror = relay.mirror(EndpointSlices)
        until(lambda: len(mirror.hub) == 1)
        stream = stack.enter_context(watching(relay, path))
        updates = 250
        seen: list[str] = []

        def read() -> None:
            events = (stream.next()["object"] for _ in range(updates))
            seen.extend(event["metadata"]["labels"]["number"] for event in events)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(updates):
            change = {
                "metadata": {
                    "labels": {"number": str(number)},
                    "annotations": {"text": f"{number}" + "x" * 20_000},
                }
            }
            media = "application/merge-patch+json"
            reply = parent.request("PATCH", f"{IN_DEFAULT}/large", change, content_type=media)
            assert reply.code == 200
        reader.join(60)
        assert seen == [str(number) for number in range(updates)]
        assert mirror.hub.overflowed.value == 1
        until(lambda: len(mirror.hub) == 1)


def test_relays_that_are_each_others_parents(
    parent: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = [free_port(), free_port()]
    authority = parent.plane.pki.ca_file
    ways = [
        from_file(kubeconfig(tmp_path, f"https://127.0.0.1:{port}", authority, ADMIN))
        for port in reversed(ports)
    ]
    with (
        relaying(parent, connection=ways[0], ready=False, port=ports[0]) as one,
        relaying(parent, connection=ways[1], ready=False, port=ports[1]),
    ):
        headers = {"authorization": f"Bearer {ADMIN}"}
        looped = one.request("GET", "/version", certificate=False, **headers)
        assert looped.code == 508
        assert "its own parent" in looped.json["message"]
        assert one.request("GET", "/readyz", certificate=False).code == 500
        listed = one.request("GET", SLICES, certificate=False, **headers)
        assert listed.code in (503, 508)


def test_silence_is_told(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENT_S", 3.0)
    monkeypatch.setattr(children, "VERDICT_S", 1000.0)
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens))
    with relaying(Server(plane), trust_nodes=True) as relay:

        def read(query: str) -> Reply:
            headers = {"authorization": "Bearer node-token"}
            return relay.request("GET", f"{SLICES}?{query}", certificate=False, **headers)

        assert read("").code == relay.get("/readyz").code == 200
        end()
        until(lambda: relay.get("/readyz").code == 500)
        assert read("resourceVersion=0").code == 200, "it goes on serving what it has"
        refused = read("resourceVersion=0&watch=true")
        assert refused.code == 503
        assert "the parent is silent" in refused.json["message"]
        assert read("").code == 503, "what the parent has now is not known"
        assert relay.get(f"{SLICES}?resourceVersion=0").code == 503, "it cannot be reviewed"


def test_certificates_are_read_again(
    parent: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sliceplane.relay.io import relay as assembly

    monkeypatch.setattr(assembly, "TICK_S", 0.2)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    pki = parent.plane.pki
    cert.write_bytes(pki.server_file.read_bytes())
    key.write_bytes(pki.server_key_file.read_bytes())
    with relaying(parent, cert_file=cert, key_file=key) as relay:

        def served() -> str:
            return ssl.get_server_certificate((relay.host, relay.port))

        assert served().split() == cert.read_text().split()[: len(served().split())]
        cert.write_bytes(pki.admin_file.read_bytes())
        assert served().split() == pki.server_file.read_text().split()[: len(served().split())], (
            "half replaced"
        )
        key.write_bytes(pki.admin_key_file.read_bytes())
        until(
            lambda: served().split() == pki.admin_file.read_text().split()[: len(served().split())]
        )
