"""Kubeconfigs and credentials to connections."""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.server.serving import Server

from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.connection import CredentialsError, KubeconfigError, basic, bearer
from sliceplane.watch.io.credentials import Exec, TokenFile
from sliceplane.watch.io.http import pool


def written(
    folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], **extra: Any
) -> Path:
    document = {
        "kind": "Config",
        "apiVersion": "v1",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": dict(cluster)}],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "mine"}}],
        **extra,
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return path


async def test_token_and_plain_http(tmp_path: Path) -> None:
    connection = kubeconfig.load(
        written(tmp_path, {"server": "http://127.0.0.1:8080/"}, {"token": "t"})
    )
    assert (connection.server, connection.ssl_context, connection.namespace) == (
        "http://127.0.0.1:8080",
        None,
        "mine",
    )
    assert await connection.credentials.authorization() == "Bearer t"


async def test_another_server_than_the_kubeconfigs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {"server": "https://h"}, {"token": "t"})
    plain = kubeconfig.load_for("http://127.0.0.1:8080/", path)
    assert (plain.server, plain.ssl_context) == ("http://127.0.0.1:8080", None)
    assert await plain.credentials.authorization() == "Bearer t"
    assert kubeconfig.load_for("https://other", path).ssl_context is not None
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    alone = kubeconfig.load_for("https://other")
    assert alone.ssl_context is not None
    assert await alone.credentials.authorization() == ""
    with pytest.raises(KubeconfigError, match="'other' is not the URL of a server"):
        kubeconfig.load_for("other")


def test_the_kernel_finds_out_that_a_peer_is_gone() -> None:
    """Options that make a watch end whose peer vanished without a word."""
    opened = pool.watchful_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with opened:
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == pool.KEEPALIVE_IDLE_S
        bound_ms = (
            pool.KEEPALIVE_IDLE_S + pool.KEEPALIVE_INTERVAL_S * pool.KEEPALIVE_PROBES
        ) * 1000
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == bound_ms <= 30_000


async def test_basic_and_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, {"server": "http://h"}, {"username": "ab", "password": "c"})
    assert await kubeconfig.load(path).credentials.authorization() == "Basic YWI6Yw=="
    assert (
        await kubeconfig.load(
            written(tmp_path, {"server": "http://h"}, {})
        ).credentials.authorization()
        == ""
    )


def test_insecure_and_server_name(tmp_path: Path) -> None:
    cluster = {
        "server": "https://h",
        "insecure-skip-tls-verify": True,
        "tls-server-name": "api.internal",
    }
    connection = kubeconfig.load(written(tmp_path, cluster, {}))
    assert connection.ssl_context is not None
    assert connection.ssl_context.verify_mode is ssl.CERT_NONE
    assert connection.server_hostname == "api.internal"


def test_certificates_need_no_folder_for_temporary_files(
    tmp_path: Path, plane_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only; and no key is ever on a disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not-there"))
    path = Path(plane_server.plane.kubeconfig)
    assert "client-key-data" in path.read_text()
    context = kubeconfig.load(path).ssl_context
    assert context is not None


def test_client_certificates_as_files_and_as_data(tmp_path: Path, plane_server: Server) -> None:
    embedded = yaml.safe_load(plane_server.plane.kubeconfig.read_text())
    user = embedded["users"][0]["user"]
    cluster = embedded["clusters"][0]["cluster"]
    connection = kubeconfig.load(written(tmp_path, cluster, user))
    assert connection.ssl_context is not None
    assert connection.ssl_context.verify_mode is ssl.CERT_REQUIRED
    pki = plane_server.plane.pki
    for name, source in (("ca", pki.ca_file), ("crt", pki.admin_file), ("key", pki.admin_key_file)):
        (tmp_path / name).write_bytes(Path(source).read_bytes())
    # Paths are relative to the kubeconfig.
    files = {"client-certificate": "crt", "client-key": "key"}
    path = written(tmp_path, {"server": "https://h", "certificate-authority": "ca"}, files)
    assert kubeconfig.load(path).ssl_context is not None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not YAML"),
        ("a: 1", "is incomplete: it has no 'clusters'"),
        ("", "is incomplete: it holds no members"),
        ("127.0.0.1 localhost", "is incomplete: it holds no members"),
        ("clusters: []\ncontexts: []\n", "No current context"),
        ("clusters: []\ncontexts: []\ncurrent-context: x\n", "Context 'x' not found"),
        (
            "clusters: []\ncontexts: [{name: x, context: {cluster: y}}]\ncurrent-context: x\n",
            "is incomplete",
        ),
    ],
)
def test_a_useless_kubeconfig_is_one_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigError, match=complaint) as error:
        kubeconfig.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="No such file"):
        kubeconfig.load(tmp_path / "nothing")
    with pytest.raises(KubeconfigError, match="certificates cannot be used"):
        kubeconfig.load(
            written(tmp_path, {"server": "https://h", "certificate-authority": "nothing"}, {})
        )
    with pytest.raises(KubeconfigError, match="certificates cannot be used"):
        kubeconfig.load(
            written(tmp_path, {"server": "https://h", "certificate-authority-data": "%%%"}, {})
        )


def test_removed_ways_to_log_in_are_told(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="use exec"):
        kubeconfig.load(
            written(tmp_path, {"server": "http://h"}, {"auth-provider": {"name": "gcp"}})
        )


def test_where_a_kubeconfig_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert kubeconfig.default_path() == tmp_path / ".kube" / "config"
    with pytest.raises(
        KubeconfigError, match=r"there is no kubeconfig .*/config: name one with --kubeconfig"
    ):
        kubeconfig.load()
    monkeypatch.setenv("KUBECONFIG", f":{tmp_path}/one:{tmp_path}/two")
    assert kubeconfig.default_path() == tmp_path / "one"


async def test_inside_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plane_server: Server
) -> None:
    authority = plane_server.plane.pki.ca_file
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("ours")
    (tmp_path / "ca.crt").symlink_to(authority)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    connection = kubeconfig.in_cluster(str(tmp_path))
    assert (connection.server, connection.namespace) == ("https://[fd00::1]:443", "ours")
    assert await connection.credentials.authorization() == "Bearer first"
    with pytest.raises(KubeconfigError, match="not a pod"):
        kubeconfig.in_cluster(str(tmp_path / "elsewhere"))


async def test_a_token_file_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    credentials = TokenFile(path)
    assert await credentials.authorization() == "Bearer one"
    path.write_text("two\n")
    assert await credentials.authorization() == "Bearer one"
    assert await credentials.authorization(refused="Bearer one") == "Bearer two"
    path.write_text("three\n")
    assert await credentials.authorization(refused="Bearer one") == "Bearer two", (
        "another request was refused, too"
    )
    path.unlink()
    assert await credentials.authorization() == "Bearer two"
    with pytest.raises(CredentialsError, match="No such file"):
        await credentials.authorization(refused="Bearer two")


def login(*arguments: str, code: str) -> Exec:
    return Exec(
        sys.executable,
        ["-c", code, *arguments],
        {"LOGIN": "yes"},
        "client.authentication.k8s.io/v1",
        "Install it.",
    )


async def test_a_login_program_is_run_once_until_its_token_expires(tmp_path: Path) -> None:
    code = (
        "import json, os, sys, pathlib\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert info['apiVersion'] == 'client.authentication.k8s.io/v1' and os.environ['LOGIN'] "
        "== 'yes'\n"
        "path = pathlib.Path(sys.argv[1]); n = len(path.read_text()) if path.exists() else 0\n"
        "path.write_text('x' * (n + 1))\n"
        "status = {'token': f't{n}'}\n"
        "if n == 1: status['expirationTimestamp'] = '2020-01-01T00:00:00Z'\n"
        "print(json.dumps({'status': status}))\n"
    )
    credentials = login(str(tmp_path / "count"), code=code)
    assert [await credentials.authorization() for _ in range(3)] == ["Bearer t0"] * 3
    assert await credentials.authorization(refused="Bearer of before") == "Bearer t0", (
        "it was renewed meanwhile"
    )
    assert await credentials.authorization(refused="Bearer t0") == "Bearer t1"
    # That one was expired from the start.
    assert await credentials.authorization() == "Bearer t2"


async def test_a_login_program_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="ended with 3: no such user"):
        await login(
            code="import sys; sys.stderr.write('no such user'); sys.exit(3)"
        ).authorization()
    with pytest.raises(CredentialsError, match="printed no token"):
        await login(code="print('hello')").authorization()
    missing = Exec(
        str(tmp_path / "nothing"), [], {}, "client.authentication.k8s.io/v1", "Install it."
    )
    with pytest.raises(CredentialsError, match=r"No such file or directory\. Install it\."):
        await missing.authorization()


async def test_fixed_credentials_cannot_be_refreshed() -> None:
    assert not bearer("t").refreshable
    assert await basic("a", "b").authorization(refused="Basic YTpi") == "Basic YTpi"
