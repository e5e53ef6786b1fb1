"""The Helm chart: the file that ``helm package`` would make, and the archive of an OCI layout that
holds it.

Media types: https://helm.sh/docs/topics/registries/. Helm's own pull from a registry on loopback is
the try-out.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from pathlib import Path
from typing import Any, Final

import yaml
from tools.release.oci import MANIFEST, Layout
from tools.release.running import DIST, VERSION, checkout, commit, run, tar_of, twice

FILE: Final = f"sliceplane-chart-{VERSION}.tgz"
ARCHIVE: Final = f"sliceplane-chart-{VERSION}.oci.tar"
CONFIG_TYPE: Final = "application/vnd.cncf.helm.config.v1+json"
CONTENT_TYPE: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def build(scratch: Path) -> None:
    def both(folder: Path) -> None:
        source = (
            checkout(folder.with_name(f"{folder.name}-source")) / "deploy" / "helm" / "sliceplane"
        )
        files = sorted(path for path in source.rglob("*") if path.is_file())
        packed = tar_of(
            ((f"sliceplane/{path.relative_to(source)}", path) for path in files), compressed=True
        )
        (folder / FILE).write_bytes(packed)
        metadata = yaml.safe_load((source / "Chart.yaml").read_text())
        layout = Layout()
        config = layout.blob(json.dumps(metadata, sort_keys=True).encode(), CONFIG_TYPE)
        annotations = {
            "org.opencontainers.image.title": metadata["name"],
            "org.opencontainers.image.version": metadata["version"],
            "org.opencontainers.image.description": metadata["description"],
            "org.opencontainers.image.revision": commit(),
        }
        manifest = layout.manifest(
            config, [layout.blob(packed, CONTENT_TYPE)], annotations=annotations
        )
        layout.list_as(manifest, VERSION)
        (folder / ARCHIVE).write_bytes(layout.archive())

    built = twice(both, scratch)
    for name in (FILE, ARCHIVE):
        (DIST / name).write_bytes((built / name).read_bytes())


def try_out(scratch: Path) -> None:
    """Helm lints the file, pulls the same one from a registry that serves the archive, and renders
    it.
    """
    from tests.deploy.helm import KUBERNETES, helm

    run(helm(), "lint", "--strict", DIST / FILE)
    (scratch / "layout").mkdir()
    run("tar", "-xf", DIST / ARCHIVE, "-C", scratch / "layout")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _registry(scratch / "layout")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"oci://127.0.0.1:{server.server_address[1]}/charts/sliceplane"
            run(helm(), "pull", url, "--version", VERSION, "--plain-http", "-d", scratch)
        finally:
            server.shutdown()
    (pulled,) = scratch.glob("sliceplane-*.tgz")
    assert pulled.read_bytes() == (DIST / FILE).read_bytes(), "the archive holds another chart"
    rendered = run(
        helm(), "template", "sliceplane", pulled, "-n", "kube-system", "--kube-version", KUBERNETES
    )
    images = sorted(set(re.findall(r'image: "?([^\s"]+)', rendered)))
    assert images == [f"sliceplane:{VERSION}"], images
    print(
        f"      helm pulls {ARCHIVE}, and renders {rendered.count('kind: ')} objects with "
        f"{', '.join(images)}"
    )


def _registry(folder: Path) -> type[http.server.BaseHTTPRequestHandler]:
    """A registry that serves one layout, read-only (distribution-spec, "Pull")."""
    (listed,) = json.loads((folder / "index.json").read_text())["manifests"]

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = re.fullmatch(r"/v2/charts/sliceplane/(manifests|blobs)/(\S+)", self.path)
            digest = found[2] if found and found[2].startswith("sha256:") else str(listed["digest"])
            path = folder / "blobs" / digest.replace(":", "/")
            known = self.path == "/v2/" or (found is not None and path.exists())
            body = path.read_bytes() if found and known else b""
            self.send_response(200 if known else 404)
            if found is not None and found[1] == "manifests":
                self.send_header("Content-Type", MANIFEST)
                self.send_header("Docker-Content-Digest", digest)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    return Registry
