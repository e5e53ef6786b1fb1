"""What a kubeconfig may say about reaching a cluster, tried against a real server where one can
tell.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.server.serving import Server
from tests.watch.transport.test_connections import written

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Namespaces
from sliceplane.watch.io import kubeconfig, tls
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import CredentialsError, KubeconfigError
from sliceplane.watch.io.credentials import Exec
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.http.proxies import from_environment
from sliceplane.watch.io.tls import Pem, Tls

V1 = "client.authentication.k8s.io/v1"


def cluster_of(server: Server, **more: Any) -> dict[str, Any]:
    return {
        "server": server.plane.url,
        "certificate-authority": str(server.plane.pki.ca_file),
        **more,
    }


def good_token(server: Server) -> str:
    tokens = Path(server.plane.kubeconfig).with_name("tokens.csv")
    return tokens.read_text().split(",")[0].strip()


def program(folder: Path, body: str) -> Path:
    """A login program: Python with ``n``, how often it ran before, and ``info``, what it was
    told.
    """
    path = folder / "login"
    head = f"""\
        #!{sys.executable}
        import json, os, pathlib
        counter = pathlib.Path(__file__).with_name("runs")
        n = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (n + 1))
        info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
        def answer(**status): print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential",
                                                 "status": status}}))
    """
    path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
    path.chmod(0o755)
    return path


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def exec_user(**more: Any) -> dict[str, Any]:
    # relative to the kubeconfig, as it has a slash
    return {
        "exec": {"apiVersion": V1, "command": "./login", "interactiveMode": "IfAvailable", **more}
    }


async def reads(path: Path, **options: Any) -> bool:
    client = HttpClient(kubeconfig.load(path, **options))
    try:
        return b"kube-system" in await client.get(Namespaces, "", "kube-system")
    finally:
        await client.close()


async def test_a_token_of_a_login_program_that_is_refused_is_asked_for_again(
    tmp_path: Path, plane_server: Server
) -> None:
    program(tmp_path, f"answer(token='revoked' if n == 0 else {good_token(plane_server)!r})")
    client = HttpClient(kubeconfig.load(written(tmp_path, cluster_of(plane_server), exec_user())))
    for _ in range(3):
        await client.get(Namespaces, "", "kube-system")
    await client.close()
    assert runs(tmp_path) == 2


async def test_client_certificates_of_a_login_program(tmp_path: Path, plane_server: Server) -> None:
    pki = plane_server.plane.pki
    names = {"crt": str(pki.admin_file), "key": str(pki.admin_key_file)}
    program(
        tmp_path,
        f"read = lambda name: pathlib.Path({names!r}[name]).read_text()\n"
        "answer(clientCertificateData=read('crt'), clientKeyData=read('key'))",
    )
    assert await reads(written(tmp_path, cluster_of(plane_server), exec_user()))
    assert runs(tmp_path) == 1


async def test_what_a_login_program_is_told(tmp_path: Path, plane_server: Server) -> None:
    program(
        tmp_path,
        "pathlib.Path(__file__).with_name('told').write_text(json.dumps([info, "
        "os.environ['REGION']]))\n"
        f"answer(token={good_token(plane_server)!r})",
    )
    variables = [
        {"name": "REGION", "value": "north"},
        {"name": "KUBERNETES_EXEC_INFO", "value": "{}"},
    ]
    extension = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    cluster = cluster_of(plane_server, extensions=extension)
    v1beta1 = V1.replace("v1", "v1beta1")
    user = exec_user(env=variables, provideClusterInfo=True, args=["--x"], apiVersion=v1beta1)
    assert await reads(written(tmp_path, cluster, user))
    info, region = json.loads((tmp_path / "told").read_text())
    authority = base64.b64encode(plane_server.plane.pki.ca_file.read_bytes()).decode()
    told = {
        "server": plane_server.plane.url,
        "certificate-authority-data": authority,
        "config": {"audience": "a"},
    }
    assert info == {
        "apiVersion": v1beta1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": told},
    }
    assert region == "north"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "info['apiVersion'] = 'client.authentication.k8s.io/v2'; answer(token='t')",
            "answered in .*/v2, and was ask",
        ),
        ("answer(clientCertificateData='c')", "without its key"),
        ("answer(clientCertificateData='c', clientKeyData='k')", "certificate that cannot be used"),
        ("answer(expirationTimestamp='2030-01-01T00:00:00Z')", "printed no token"),
    ],
)
async def test_a_useless_answer_of_a_login_program_is_a_sentence(
    tmp_path: Path, body: str, complaint: str
) -> None:
    path = program(tmp_path, body)
    login = Exec(str(path), [], {}, V1, "", tls=Tls())
    with pytest.raises(CredentialsError, match=complaint):
        await login.authorization()


async def test_a_login_program_that_is_missing_is_told_with_its_hint(
    tmp_path: Path, plane_server: Server
) -> None:
    user = exec_user(command="no-such-login", installHint="Install it with apt.")
    with pytest.raises(
        Unreachable, match=r"cannot run no-such-login: No such file.* Install it with apt\."
    ):
        await reads(written(tmp_path, cluster_of(plane_server), user))


@pytest.mark.parametrize(
    ("user", "cluster", "complaint"),
    [
        (exec_user(interactiveMode="Always"), {}, "there is none"),
        (exec_user(apiVersion="client.authentication.k8s.io/v1alpha1"), {}, "not supported, only"),
        ({}, {"proxy-url": "socks5://127.0.0.1:1"}, "must be an http or https URL"),
        ({}, {"insecure-skip-tls-verify": True, "certificate-authority": "ca"}, "contradict"),
    ],
)
def test_what_cannot_be_done_is_told_at_once(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(KubeconfigError, match=complaint):
        kubeconfig.load(written(tmp_path, {"server": "https://h", **cluster}, user))


# Several files


def test_of_several_files_the_first_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = {
        "contexts": [
            {"name": "one", "context": {"cluster": "k", "user": "u", "namespace": "first"}}
        ]
    }
    first["users"] = [{"name": "u", "user": {"token": "first"}}]
    (tmp_path / "a" / "config").write_text(yaml.safe_dump(first))
    second = written(
        tmp_path / "b", {"server": "http://second"}, {"token": "second", "tokenFile": "secret"}
    )
    (tmp_path / "b" / "secret").write_text("of the file")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a/config::{tmp_path}/missing:{second}")
    # current-context and the cluster are the second's, the user the first's: all of it
    chosen = kubeconfig.load()
    assert (chosen.server, chosen.namespace) == ("http://second", "mine")
    assert kubeconfig.load(context="one").namespace == "first"
    with pytest.raises(KubeconfigError, match="Context 'two' not found, only c, one"):
        kubeconfig.load(context="two")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/x:{tmp_path}/y")
    with pytest.raises(KubeconfigError, match="none of these kubeconfigs exists"):
        kubeconfig.load()


async def test_paths_are_relative_to_the_file_that_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("clusters: []\ncontexts: null\n")
    second = written(tmp_path / "b", {"server": "http://second"}, {"tokenFile": "secret"})
    (tmp_path / "b" / "secret").write_text("of the file")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a{os.pathsep}{second}")
    assert await kubeconfig.load().credentials.authorization() == "Bearer of the file"


def test_a_kubeconfig_that_is_named_beats_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(kubeconfig, "IN_CLUSTER_FOLDER", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "h")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path, {"server": "http://named"}, {})))
    assert kubeconfig.load().server == "http://named"


async def test_impersonation_is_not_forgotten(tmp_path: Path, plane_server: Server) -> None:
    user = {
        "token": good_token(plane_server),
        "as": "nobody",
        "as-groups": ["g"],
        "as-user-extra": {"why": ["x"]},
    }
    path = written(tmp_path, cluster_of(plane_server), user)
    assert kubeconfig.load(path).headers == (
        ("Impersonate-User", "nobody"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Extra-why", "x"),
    )
    with pytest.raises(StatusError, match='User "nobody" cannot get resource'):
        await reads(path)


# What changes while we run


async def test_a_pods_token_is_read_again_when_it_was_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plane_server: Server
) -> None:
    (tmp_path / "token").write_text("the old one")
    (tmp_path / "ca.crt").symlink_to(plane_server.plane.pki.ca_file)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", plane_server.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane_server.port))
    client = HttpClient(kubeconfig.in_cluster(str(tmp_path)))
    with pytest.raises(StatusError, match="Unauthorized"):
        await client.get(Namespaces, "", "default")
    (tmp_path / "token").write_text(good_token(plane_server))
    await client.get(Namespaces, "", "default")
    await client.close()


async def test_certificates_in_files_are_read_again(tmp_path: Path, plane_server: Server) -> None:
    """No certificate at first, so anonymous; then one is put there.  The next request has it."""
    pki = plane_server.plane.pki
    for name in ("crt", "key"):
        (tmp_path / name).touch()
    user = {"client-certificate": "crt", "client-key": "key"}
    connection = kubeconfig.load(written(tmp_path, cluster_of(plane_server), user))
    client = HttpClient(connection)
    with pytest.raises(StatusError):
        await client.get(Namespaces, "", "default")
    (tmp_path / "key").write_bytes(pki.admin_key_file.read_bytes())
    (tmp_path / "crt").write_bytes(pki.admin_file.read_bytes())
    assert connection.tls is not None
    connection.tls.check_files()
    await client.get(Namespaces, "", "default")
    await client.close()


def test_files_that_are_just_being_replaced_change_nothing(
    tmp_path: Path, plane_server: Server
) -> None:
    now = 0.0
    path = tmp_path / "ca"
    path.write_bytes(plane_server.plane.pki.ca_file.read_bytes())
    holder = Tls(authority=Pem(path=path), clock=lambda: now)
    first = holder.current()
    path.write_text("half of it")
    assert holder.current() == first, "not looked at yet"
    now += tls.FILE_CHECK_PERIOD_S
    assert holder.current() == first
    path.unlink()
    now += tls.FILE_CHECK_PERIOD_S
    assert holder.current() == first
    path.write_bytes(plane_server.plane.pki.ca_file.read_bytes())
    now += tls.FILE_CHECK_PERIOD_S
    number, context = holder.current()
    assert (number, context is first[1]) == (2, False)


@pytest.mark.parametrize(
    ("server", "without", "proxy"),
    [
        ("https://api.example", "", "http://p:3128"),
        ("https://api.example", "example", ""),
        ("https://api.example", ".example", ""),
        ("https://api.example", "ample", "http://p:3128"),
        ("https://api.example:6443", "api.example:443", "http://p:3128"),
        ("https://api.example:6443", "x,api.example:6443", ""),
        ("https://10.1.2.3", "10.0.0.0/8", ""),
        ("https://10.1.2.3", "10.1.2.30,192.168.0.0/16,zz/8", "http://p:3128"),
        ("https://[fd00::1]:6443", "fd00::/8", ""),
        ("https://api.example", "*", ""),
        ("https://127.0.0.1:6443", "", ""),
        ("https://localhost", "", ""),
        ("http://api.example", "", ""),
    ],
)
def test_the_proxy_of_the_environment(server: str, without: str, proxy: str) -> None:
    assert from_environment(server, {"HTTPS_PROXY": "p:3128", "NO_PROXY": without}) == proxy
