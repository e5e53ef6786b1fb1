"""Metadata only: PartialObjectMetadata and its list (``as=PartialObjectMetadata`` in Accept)."""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.api.meta import Document


def partial_object(document: Document, version: str = "v1") -> Document:
    """*document*'s metadata (shared, not copied); *version* is that of meta.k8s.io: v1 or v1beta1."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": document.get("metadata") or {},
    }


def partial_list(documents: Iterable[Document], list_meta: Document, version: str = "v1") -> Document:
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": list_meta,
        "items": [partial_object(document, version) for document in documents],
    }
