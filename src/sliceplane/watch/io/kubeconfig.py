"""From kubeconfigs, or from inside a pod, to how a server is reached and who we are there.

What is in files is read again when the files change (``transport.tls``, ``transport.credentials``);
the kubeconfig itself is read once.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sliceplane.kit.io.files import CREDENTIAL_BYTES_MAX, read_bytes, read_text
from sliceplane.watch.io.connection import (
    Connection,
    Credentials,
    Fixed,
    KubeconfigError,
    NoKubeconfig,
    basic,
    bearer,
)
from sliceplane.watch.io.credentials import API_VERSIONS, Exec, TokenFile
from sliceplane.watch.io.http import proxies
from sliceplane.watch.io.kubeconfig_files import (
    Chosen,
    ClusterEntry,
    ExecEntry,
    UserEntry,
    choose,
)
from sliceplane.watch.io.tls import Pem, Tls

IN_CLUSTER_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
#: the extension of a cluster that login programs are told of
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


def load(path: str | Path | None = None, *, context: str | None = None) -> Connection:
    """Read a kubeconfig.

    Without *path*: the files of ``KUBECONFIG``, merged; else the service account if this is a pod;
    else ``~/.kube/config``. Raises ``KubeconfigError``, ``NoKubeconfig`` among them.
    """
    if path is not None:
        return from_file(Path(path), context=context)
    if os.environ.get("KUBECONFIG", "").strip(os.pathsep):
        return _connection(choose(default_paths(), context))
    if (
        context is None
        and "KUBERNETES_SERVICE_HOST" in os.environ
        and Path(IN_CLUSTER_FOLDER, "token").exists()
    ):
        return in_cluster()
    if not default_path().exists():
        raise NoKubeconfig(
            f"there is no kubeconfig {default_path()}: name one with --kubeconfig or in KUBECONFIG"
        )
    return from_file(default_path(), context=context)


def load_or_running(
    path: str | Path | None = None,
    *,
    context: str | None = None,
    on_plane: Callable[[Path], object] | None = None,
) -> Connection:
    """As ``load``; and where there is no kubeconfig at all, the plane that ``sliceplane up`` runs
    for this user, whose kubeconfig *on_plane* is told. Raises ``KubeconfigError``.
    """
    try:
        return load(path, context=context)
    except NoKubeconfig as error:
        from sliceplane.kit.io.data_folder import running_plane  # most clients have a kubeconfig

        plane = running_plane()
        if plane is None:
            raise NoKubeconfig(
                f"{error}; nor does 'sliceplane up' run from this user's data folder"
            ) from error
        if on_plane is not None:
            on_plane(plane)
        return from_file(plane, context=context)


def default_paths() -> list[Path]:
    """The files of ``KUBECONFIG``, else kubectl's own.  Raises ``NoKubeconfig`` where there is no
    home for it.
    """
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    try:
        return [Path(part).expanduser() for part in named or ["~/.kube/config"]]
    except RuntimeError as error:
        why = (
            "there is no home directory with a .kube/config: set HOME, name a file in KUBECONFIG, "
            "or use --kubeconfig"
        )
        raise NoKubeconfig(why) from error


def load_for(
    server: str, path: str | Path | None = None, *, context: str | None = None
) -> Connection:
    """The API server at the URL *server*, with what ``load`` finds for anything else; without
    *path*, and where there is nothing to load, as an anonymous user. Raises ``KubeconfigError``.
    """
    server = server.rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeconfigError(
            f"{server!r} is not the URL of a server: it begins with neither http:// nor https://"
        )
    if path is None and not os.environ.get("KUBECONFIG") and not default_path().exists():
        connection = Connection(server=server, ssl_context=None, credentials=Fixed())
    else:
        connection = load(path, context=context)
    if not server.startswith("https://"):
        return replace(connection, server=server, ssl_context=None, tls=None)
    plain = connection.ssl_context is None and connection.tls is None
    tls = ssl.create_default_context() if plain else connection.ssl_context
    return replace(connection, server=server, ssl_context=tls)


def default_path() -> Path:
    return default_paths()[0]


def in_cluster(folder: str = IN_CLUSTER_FOLDER) -> Connection:
    """The API server of the pod that this process runs in.  Raises ``KubeconfigError``."""
    here = Path(folder)
    try:
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        port = os.environ["KUBERNETES_SERVICE_PORT"]
        read_bytes(here / "token", CREDENTIAL_BYTES_MAX)
    except (KeyError, OSError) as error:
        raise KubeconfigError(f"this is not a pod with a service account: {error}") from error
    try:
        namespace = read_text(here / "namespace", CREDENTIAL_BYTES_MAX).strip()
    except OSError:
        namespace = ""
    cluster = ClusterEntry(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        certificate_authority=str(here / "ca.crt"),
    )
    user = UserEntry(token_file=str(here / "token"))
    return _connection(
        Chosen(cluster, user, namespace or "default", folder, "the service account of this Pod")
    )


def from_file(path: Path, *, context: str | None = None) -> Connection:
    """Raises ``KubeconfigError``."""
    return _connection(choose([path], context))


def _connection(chosen: Chosen) -> Connection:
    cluster = chosen.cluster
    user = chosen.user
    server = cluster.server.rstrip("/")
    if not server.startswith(("http://", "https://")):
        server = f"https://{server}"
    if not proxies.is_usable(server):
        raise KubeconfigError(f"{chosen.source}: {server!r} is not the URL of a server")
    try:
        tls = _tls(cluster, user) if server.startswith("https://") else None
        proxy = (
            proxies.configured(cluster.proxy_url)
            if cluster.proxy_url
            else proxies.from_environment(server)
        )
    except proxies.ProxyError as error:
        raise KubeconfigError(f"{chosen.source}: {error}") from error
    except (OSError, ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{chosen.source}: certificates cannot be used: {error}") from error
    return Connection(
        server=server,
        ssl_context=None if tls is None else tls.current()[1],
        credentials=_credentials(cluster, user, tls),
        namespace=chosen.namespace,
        account=user.impersonate or chosen.account,
        server_hostname=cluster.tls_server_name or None,
        tls=tls,
        proxy=proxy,
        headers=_impersonation(user),
    )


def _tls(cluster: ClusterEntry, user: UserEntry) -> Tls:
    authority = _pem(cluster.certificate_authority_data, cluster.certificate_authority)
    if cluster.insecure_skip_tls_verify and (authority.data or authority.path):
        raise KubeconfigError(
            "insecure-skip-tls-verify and a certificate authority contradict each other"
        )
    return Tls(
        authority=authority,
        certificate=_pem(user.client_certificate_data, user.client_certificate),
        key=_pem(user.client_key_data, user.client_key),
        insecure=cluster.insecure_skip_tls_verify,
    )


def _pem(data: str | None, path: str | None) -> Pem:
    if data:
        # Strictly: lenient decoding makes nothing of rubbish, and no authority at all means to
        # trust every public one.
        return Pem(data=base64.b64decode("".join(data.split()), validate=True))
    return Pem(path=Path(path)) if path else Pem()


def _credentials(cluster: ClusterEntry, user: UserEntry, tls: Tls | None) -> Credentials:
    if user.token_file:
        return TokenFile(Path(user.token_file))
    if user.token:
        return bearer(user.token)
    if user.exec:
        return _exec(cluster, user.exec, tls)
    if user.username and user.password is not None:
        return basic(user.username, user.password)
    if user.auth_provider:
        raise KubeconfigError(
            "auth-provider is not supported: Kubernetes removed it in 1.26, use exec"
        )
    return Fixed()


def _exec(cluster: ClusterEntry, entry: ExecEntry, tls: Tls | None) -> Exec:
    if entry.api_version not in API_VERSIONS:
        supported = " and ".join(API_VERSIONS)
        raise KubeconfigError(
            f"exec: apiVersion {entry.api_version!r} is not supported, only {supported}"
        )
    if entry.interactive_mode == "Always":
        raise KubeconfigError(
            f"exec: {entry.command} wants to ask a person (interactiveMode Always), and there is "
            "none"
        )
    return Exec(
        entry.command,
        entry.args or [],
        {variable.name: variable.value for variable in entry.env or ()},
        entry.api_version,
        entry.install_hint or "",
        cluster=_cluster_info(cluster) if entry.provide_cluster_info else None,
        tls=tls,
    )


def _cluster_info(cluster: ClusterEntry) -> Mapping[str, Any]:
    """``spec.cluster`` of an ExecCredential."""
    authority = _pem(cluster.certificate_authority_data, cluster.certificate_authority).read()
    config = next(
        (e.get("extension") for e in cluster.extensions or () if e.get("name") == _EXEC_EXTENSION),
        None,
    )
    cluster_fields: dict[str, Any] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority).decode(),
        "proxy-url": cluster.proxy_url,
        "config": config,
    }
    return {name: value for name, value in cluster_fields.items() if value}


def _impersonation(user: UserEntry) -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", user.impersonate)] if user.impersonate else []
    headers += [("Impersonate-Uid", user.impersonate_uid)] if user.impersonate_uid else []
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    for key, values in sorted((user.impersonate_extra or {}).items()):
        headers += [(f"Impersonate-Extra-{key}", value) for value in values]
    return tuple(headers)
