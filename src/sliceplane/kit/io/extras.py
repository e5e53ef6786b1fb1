"""Modules that only an extra installs, and the command that installs it."""

from __future__ import annotations

#: the extra that installs a module, by module
EXTRA_OF = {
    "cryptography": "server",
    "hpack": "server",
    "httptools": "server",
    "joserfc": "server",
    "jsonpatch": "server",
    "prometheus_client": "server",
    "structlog": "server",
    "uvicorn": "server",
    "uvloop": "server",
    "grpc": "etcd",
    "google": "etcd",
    "matplotlib": "plot",
}
PACKAGE = "sliceplane"


def requirement(extra: str) -> str:
    """Returns pip's requirement, quoted for a shell: the source of this package, if that is no
    package index (PEP 610).
    """
    import json
    from importlib import metadata  # imported here: it costs 30 ms that most starts do not need

    try:
        origin_file = metadata.distribution(PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin_file = None
    if origin_file is None:
        return f"'{PACKAGE}[{extra}]'"
    origin = json.loads(origin_file)
    url = origin["url"]
    vcs = origin.get("vcs_info")
    if vcs is not None:
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"'{PACKAGE}[{extra}] @ {url}'"
