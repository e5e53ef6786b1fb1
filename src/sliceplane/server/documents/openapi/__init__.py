"""OpenAPI documents, made from the resource table and the schema data (KEP-2896, OpenAPI v3).

Promises: ``index`` and ``document`` are what ``/openapi/v3`` and ``/openapi/v3/...`` answer, good
for ``kubectl explain``, for validation by ``kubectl apply`` and for its strategic merge patches;
``v2_protobuf`` and ``v2_json`` are the smallest answers that ``/openapi/v2`` may give. The same
process gives the same bytes, made on first use and kept. Never: knows of HTTP (conditional
requests, redirects and media types are the server's).
"""

from __future__ import annotations

from sliceplane.server.documents.openapi.documents import (
    document,
    document_names,
    document_protobuf,
    hash_of,
    index,
    v2_json,
    v2_protobuf,
)

__all__ = [
    "document",
    "document_names",
    "document_protobuf",
    "hash_of",
    "index",
    "v2_json",
    "v2_protobuf",
]
