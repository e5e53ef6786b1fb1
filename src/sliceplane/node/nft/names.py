"""Names in our table: readable, valid for nft, never too long, never ambiguous.

**The table** is ``sliceplane``, in the families ip and ip6, not upstream's ``kube-proxy``. A table
has one owner, which replaces all of it at start and deletes it at clean-up. With its own name, a
Sliceplane proxy can run next to a kube-proxy that serves other Services (label
service.kubernetes.io/service-proxy-name), and neither's clean-up removes the other's rules.

**Chains** are ``service-HASH-ns/name/proto/port`` (Cluster policy), ``local-HASH-...`` (Local
policy), ``external-HASH-...`` (traffic from outside), ``firewall-HASH-...`` (source ranges) and
``endpoint-HASH-ns/name/proto/port__ip/port`` (session affinity). These are upstream's names
(``pkg/proxy/nftables/proxier.go``), so people who know one ruleset can read the other.

**Length.** The kernel allows 255 bytes (NFT_NAME_MAXLEN 256 with the NUL); our bound is 240. The
longest name of objects that an API server accepts is ``service-`` 8 + hash 8 + ``-`` 1 + namespace
63 + ``/`` 1 + name 63 + ``/`` 1 + ``sctp`` 4 + ``/`` 1 + port 63 = 213 bytes: never truncated.
Longer names (of an API server without validation) are truncated, and characters that nft's grammar
does not allow in a name are replaced. The hash of the original keeps such names distinct.
"""

from __future__ import annotations

import base64
import hashlib
import re

from sliceplane.consume.model import ServicePortName

TABLE = "sliceplane"
NAME_LENGTH_MAX = 240
HASH_LENGTH = 8

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9/_.\-]")


def chain_name(prefix: str, name: ServicePortName, *, variant: str = "", endpoint: str = "") -> str:
    """Returns the name of a service port's chain: *prefix* is "service", "local", "external" or
    "firewall". With "endpoint" it is the chain, with "affinity" the set of one *endpoint*
    ("ip/port").

    *variant* is only in the hash: chains of different structure have different names, so that a new
    one can be used while the old one still exists.
    """
    tail = f"{name.service.namespace}/{name.service.name}/{name.protocol.lower()}/{name.port}"
    if endpoint:
        tail += f"__{endpoint.replace(':', '.')}"
    text = f"{tail} {variant}" if variant else tail
    digest = base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:HASH_LENGTH]
    full = f"{prefix}-{digest}-{_NOT_IN_NAMES.sub('_', tail)}"
    return full if len(full) <= NAME_LENGTH_MAX else full[: NAME_LENGTH_MAX - 3] + "..."
