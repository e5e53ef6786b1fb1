"""OCI image layouts (image-spec 1.1): blobs by digest, manifests, an index, and documents that
refer to an image.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from tools.release.running import tar_of

Descriptor = dict[str, Any]

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"
_REF_NAME: Final = "org.opencontainers.image.ref.name"


def _text(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


class Layout:
    """The content of one archive.  Blobs are kept once, whoever refers to them."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._listed: list[Descriptor] = []

    def blob(self, content: bytes, media_type: str) -> Descriptor:
        digest = hashlib.sha256(content).hexdigest()
        self._blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def manifest(self, config: Descriptor, layers: list[Descriptor], **more: Any) -> Descriptor:
        """*more*: ``annotations``, ``artifactType``, ``subject``."""
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            **more,
        }
        return self.blob(_text(document), MANIFEST)

    def index(self, manifests: list[Descriptor], annotations: dict[str, str]) -> Descriptor:
        document = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": annotations,
        }
        return self.blob(_text(document), INDEX)

    def list_as(self, descriptor: Descriptor, name: str) -> None:
        """The archive's index names *descriptor*."""
        self._listed.append({**descriptor, "annotations": {_REF_NAME: name}})

    def refer(self, subject: Descriptor, content: bytes, artifact_type: str) -> None:
        """Lists a document about *subject*, as a registry's referrers API finds it."""
        layer = self.blob(content, artifact_type)
        about = {key: subject[key] for key in ("mediaType", "digest", "size")}
        config = self.blob(b"{}", _EMPTY)
        descriptor = self.manifest(config, [layer], artifactType=artifact_type, subject=about)
        self._listed.append({**descriptor, "artifactType": artifact_type})

    def read(self, descriptor: Descriptor) -> Any:
        return json.loads(self._blobs[descriptor["digest"].partition(":")[2]])

    def add_from(self, folder: Path) -> tuple[Descriptor, list[Descriptor]]:
        """Config and layers of the one image of a layout on disk; the layers are blobs here
        then.
        """
        (listed,) = json.loads((folder / "index.json").read_text())["manifests"]
        document = json.loads(_file(folder, listed).read_bytes())
        for layer in document["layers"]:
            self.blob(_file(folder, layer).read_bytes(), layer["mediaType"])
        return json.loads(_file(folder, document["config"]).read_bytes()), document["layers"]

    def archive(self) -> bytes:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self._listed}
        blobs = [
            (f"blobs/sha256/{digest}", content) for digest, content in sorted(self._blobs.items())
        ]
        return tar_of(
            [
                ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
                ("index.json", _text(index)),
                *blobs,
            ]
        )


def _file(folder: Path, descriptor: Descriptor) -> Path:
    return folder / "blobs" / str(descriptor["digest"]).replace(":", "/")
