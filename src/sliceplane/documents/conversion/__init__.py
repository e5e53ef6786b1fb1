"""Older versions of a kind to the version that is stored (the hub, v1) and back.

One kind has an older version: EndpointSlice, as ``discovery.k8s.io/v1beta1``.  What its ``topology`` held became
``zone``, ``nodeName`` and ``deprecatedTopology`` in v1 (``endpoint_slice``).  A draft of v1 kept the rest of the map in
an annotation instead; that form is read wherever it is found and written when an operator asks for it (``annotation``).

Promises: the input is never changed; equal documents in, equal documents out; nothing is lost on the way to the hub
and back but what the module concerned says.
Never: validates.  A value that is wrong comes out as wrong as it went in, for validation to name.
"""

from __future__ import annotations

from sliceplane.documents.conversion.annotation import TOPOLOGY_ANNOTATION, lift, realign, stow
from sliceplane.documents.conversion.endpoint_slice import from_hub, to_hub

__all__ = ["TOPOLOGY_ANNOTATION", "from_hub", "lift", "realign", "stow", "to_hub"]
