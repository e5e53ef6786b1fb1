"""Kubeconfig files: read, merged as ``kubectl`` merges them, and the context chosen.

Of several files (``KUBECONFIG=one:two``) the first one to name a cluster, a user or a context has
all of it, and the first one to set ``current-context`` sets it. Paths are relative to the file that
they are written in. Names that lead to no file are passed over, unless none leads to one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sliceplane.watch.io.connection import KubeconfigError


class ClusterEntry(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = "http://localhost:8080"
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool = False
    extensions: list[dict[str, Any]] | None = None


class ExecVariable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecEntry(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[ExecVariable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class UserEntry(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    exec: ExecEntry | None = None
    auth_provider: dict[str, Any] | None = None
    impersonate: str | None = msgspec.field(name="as", default=None)
    impersonate_uid: str | None = msgspec.field(name="as-uid", default=None)
    impersonate_groups: list[str] | None = msgspec.field(name="as-groups", default=None)
    impersonate_extra: dict[str, list[str]] | None = msgspec.field(
        name="as-user-extra", default=None
    )


class ContextEntry(msgspec.Struct, frozen=True):
    cluster: str
    user: str = ""
    namespace: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """The settings of one context; every path in them is absolute or relative to the working
    directory.
    """

    cluster: ClusterEntry
    user: UserEntry
    namespace: str
    source: str
    #: the name of ``user``
    account: str


#: member -> its list's entries' members that are paths
_PATHS = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}
_LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}


def choose(paths: Sequence[Path], context: str | None) -> Chosen:
    """Raises ``KubeconfigError``."""
    present = [path for path in paths if path.exists()] if len(paths) > 1 else list(paths)
    if not present:
        raise KubeconfigError(f"none of these kubeconfigs exists: {', '.join(map(str, paths))}")
    source = os.pathsep.join(map(str, present))
    merged = _merged([_read(path) for path in present])
    try:
        return _chosen(merged, context, source)
    except KeyError as error:
        raise KubeconfigError(
            f"kubeconfig {source} is incomplete: it has no {error.args[0]!r}"
        ) from error
    except (TypeError, AttributeError, msgspec.ValidationError) as error:
        raise KubeconfigError(f"kubeconfig {source} is incomplete: {error}") from error


def _chosen(merged: dict[str, Any], context: str | None, source: str) -> Chosen:
    clusters = merged["clusters"]
    contexts = merged["contexts"]
    name = context or merged.get("current-context")
    if not name:
        raise KubeconfigError(
            f"kubeconfig {source}: No current context set: choose one with --context"
        )
    if name not in contexts:
        names = ", ".join(sorted(contexts)) or "none"
        raise KubeconfigError(f"kubeconfig {source}: Context {name!r} not found, only {names}")
    chosen = msgspec.convert(contexts[name], ContextEntry)
    user = merged.get("users", {})[chosen.user] if chosen.user else {}
    return Chosen(
        msgspec.convert(clusters[chosen.cluster], ClusterEntry),
        msgspec.convert(user, UserEntry),
        chosen.namespace or "default",
        source,
        chosen.user or "system:anonymous",
    )


def _merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for document in documents:
        if document.get("current-context"):
            merged.setdefault("current-context", document["current-context"])
        for member in _LISTS:
            if member in document:
                merged[member] = {**document[member], **merged.get(member, {})}
    return merged


def _read(path: Path) -> dict[str, Any]:
    """One file, its lists as dictionaries by name, null members left out, its paths made good."""
    from sliceplane.kit.io.manifests import (
        BadDocument,
        config_document,
    )  # clients without a file need no YAML

    try:
        document = config_document(path)
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error.strerror}") from error
    except BadDocument as error:
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise KubeconfigError(f"kubeconfig {path} is incomplete: it holds no members")
    read: dict[str, Any] = {"current-context": document.get("current-context")}
    try:
        for member, inner in _LISTS.items():
            if member in document:
                entries = document[member] or ()
                read[member] = {
                    entry["name"]: _entry(member, entry[inner] or {}, path.parent)
                    for entry in entries
                }
    except KeyError as error:
        raise KubeconfigError(
            f"kubeconfig {path} is incomplete: it has no {error.args[0]!r}"
        ) from error
    except (TypeError, AttributeError) as error:
        raise KubeconfigError(f"kubeconfig {path} is incomplete: {error}") from error
    return read


def _entry(member: str, written: dict[str, Any], folder: Path) -> dict[str, Any]:
    entry = {key: value for key, value in written.items() if value is not None}
    for name in _PATHS.get(member, ()):
        if entry.get(name):
            entry[name] = str(folder / entry[name])
    command = entry.get("exec")
    if isinstance(command, dict):
        command = {key: value for key, value in command.items() if value is not None}
        # A command with a slash is relative to its file, a plain name is looked up in PATH.
        if os.sep in str(command.get("command", "")):
            command["command"] = str(folder / command["command"])
        entry["exec"] = command
    return entry
