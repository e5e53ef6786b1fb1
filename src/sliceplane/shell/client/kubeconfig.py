"""From a kubeconfig, or from inside a pod, to how a server is reached and who we are there.

lightkube parses the file and picks the context; TLS contexts and credentials are made here, since its own are bound
to its HTTP library.  It is loaded when a kubeconfig is.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sliceplane.shell.client.credentials import Credentials, Exec, Fixed, TokenFile, basic, bearer

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

IN_CLUSTER_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


class KubeconfigError(Exception):
    """The configuration cannot be used.  The text is a sentence for a person and names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """``server`` is a URL without a slash at its end.  ``ssl_context`` is ``None`` for plain HTTP."""

    server: str
    ssl_context: ssl.SSLContext | None
    credentials: Credentials
    namespace: str = "default"
    #: the name that the server's certificate must have, if that is not the URL's host
    server_hostname: str | None = None


def load(path: str | Path | None = None, *, context: str | None = None) -> Connection:
    """Read a kubeconfig.

    Without *path*: the service account if this is a pod, else the first file of ``KUBECONFIG``, else
    ``~/.kube/config``.  Raises ``KubeconfigError``.
    """
    if path is None and "KUBERNETES_SERVICE_HOST" in os.environ and Path(IN_CLUSTER_FOLDER, "token").exists():
        return in_cluster()
    if path is None and not os.environ.get("KUBECONFIG") and not default_path().exists():
        raise KubeconfigError(f"there is no kubeconfig {default_path()}: name one with --kubeconfig or in KUBECONFIG")
    return from_file(Path(path) if path is not None else default_path(), context=context)


def load_for(server: str, path: str | Path | None = None) -> Connection:
    """The API server at the URL *server*, with what ``load`` finds for anything else; without *path*, and where there
    is nothing to load, as nobody.  Raises ``KubeconfigError``."""
    server = server.rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeconfigError(f"{server!r} is not the URL of a server: it begins with neither http:// nor https://")
    if path is None and not os.environ.get("KUBECONFIG") and not default_path().exists():
        found = Connection(server=server, ssl_context=None, credentials=Fixed())
    else:
        found = load(path)
    context = (found.ssl_context or ssl.create_default_context()) if server.startswith("https://") else None
    return replace(found, server=server, ssl_context=context)


def default_path() -> Path:
    first = next((part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part), "")
    return Path(first or "~/.kube/config").expanduser()


def in_cluster(folder: str = IN_CLUSTER_FOLDER) -> Connection:
    """The API server of the pod that this process runs in.  Raises ``KubeconfigError``."""
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    try:
        chosen = _chosen(KubeConfig.from_service_account(folder).get())
    except (ConfigError, KeyError) as error:
        raise KubeconfigError(f"this is not a pod with a service account: {error}") from error
    return _connection(chosen, {}, folder)


def from_file(path: Path, *, context: str | None = None) -> Connection:
    """Raises ``KubeconfigError``."""
    import msgspec
    import yaml
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    try:
        document = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(document, dict):
            raise KubeconfigError(f"kubeconfig {path} is incomplete: it holds no members")
        chosen = _chosen(KubeConfig.from_dict(document, fname=path).get(context))
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {' '.join(str(error).split())}") from error
    except ConfigError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error}") from error
    except KeyError as error:
        raise KubeconfigError(f"kubeconfig {path} is incomplete: it has no {error.args[0]!r}") from error
    except (TypeError, AttributeError, msgspec.ValidationError) as error:
        raise KubeconfigError(f"kubeconfig {path} is incomplete: {error}") from error
    return _connection(chosen, _cluster_entry(document, chosen), str(path))


def _chosen(found: SingleConfig | None) -> SingleConfig:
    assert found is not None, "get() without a default finds a context or raises"
    return found


def _cluster_entry(document: dict[str, Any], chosen: SingleConfig) -> dict[str, Any]:
    """The cluster as written, for what lightkube does not model (tls-server-name)."""
    for entry in document["clusters"]:
        if entry["name"] == chosen.context.cluster:
            return dict(entry["cluster"])
    return {}


def _connection(chosen: SingleConfig, cluster_entry: dict[str, Any], source: str) -> Connection:
    server = chosen.cluster.server.rstrip("/")
    if not server.startswith(("http://", "https://")):
        server = f"https://{server}"
    try:
        context = _ssl_context(chosen) if server.startswith("https://") else None
        credentials = _credentials(chosen)
    except (OSError, ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{source}: certificates cannot be used: {error}") from error
    return Connection(
        server=server,
        ssl_context=context,
        credentials=credentials,
        namespace=chosen.namespace,
        server_hostname=cluster_entry.get("tls-server-name"),
    )


def _ssl_context(chosen: SingleConfig) -> ssl.SSLContext:
    cluster, user = chosen.cluster, chosen.user
    if cluster.certificate_auth_data:
        authority = _decoded(cluster.certificate_auth_data).decode()
        context = ssl.create_default_context(cadata=authority)
    elif cluster.certificate_auth:
        context = ssl.create_default_context(cafile=chosen.abs_file(cluster.certificate_auth))
    else:
        context = ssl.create_default_context()
    if cluster.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if user is not None and (user.client_cert_data or user.client_cert):
        certificate = _bytes_of(chosen, user.client_cert_data, user.client_cert)
        key = _bytes_of(chosen, user.client_key_data, user.client_key)
        _load_certificate(context, certificate + b"\n" + key)
    return context


def _bytes_of(chosen: SingleConfig, data: str | None, path: str | None) -> bytes:
    if data:
        return _decoded(data)
    return Path(chosen.abs_file(path)).read_bytes() if path else b""


def _decoded(data: str) -> bytes:
    # Strictly: lenient decoding makes nothing of rubbish, and no authority at all means to trust every public one.
    return base64.b64decode("".join(data.split()), validate=True)


def _load_certificate(context: ssl.SSLContext, pem: bytes) -> None:
    # OpenSSL takes certificates from files only; this one is readable by us alone and gone at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _credentials(chosen: SingleConfig) -> Credentials:
    user = chosen.user
    if user is None:
        return Fixed()
    if user.token_file:
        return TokenFile(Path(chosen.abs_file(user.token_file)))
    if user.token:
        return bearer(user.token)
    if user.exec:
        environment = {variable.name: variable.value for variable in user.exec.env or ()}
        command = user.exec.command
        # As kubectl: a command with a slash is relative to the kubeconfig, a plain name is looked up in PATH.
        if os.sep in command:
            command = str(chosen.abs_file(command))
        hint = user.exec.installHint or ""
        return Exec(command, user.exec.args or [], environment, user.exec.apiVersion, hint)
    if user.username and user.password is not None:
        return basic(user.username, user.password)
    if user.auth_provider:
        raise KubeconfigError("auth-provider is not supported: Kubernetes removed it in 1.26, use exec")
    return Fixed()
