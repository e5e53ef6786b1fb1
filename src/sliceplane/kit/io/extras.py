"""Modules that only an extra installs, and the command that installs it."""

from __future__ import annotations

#: modules that only the extras install, and the extra to name to a person who lacks one
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
    from importlib import metadata  # 30 ms that a start need not pay

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
