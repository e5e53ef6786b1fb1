"""The static part of the table: base chains, sets, maps and the rules that lead into them (reference A6).

```
prerouting, output  -100  nat     -> services: vmap service-ips -> the chain of a service port -> DNAT
input, forward, output 0  filter  -> service-endpoints-check: vmap no-endpoint-services -> reject or drop
forward, output        0  filter  -> cluster-ips-check: a known cluster IP that nothing translated -> reject
postrouting          100  nat     -> masquerading: a connection to oneself through a service
```

The checks stand *after* the translation, so they see only what was not translated: ports that the Service does
not have, or Services without endpoints.  They look at new connections only, so established ones outlive every
change here.
"""

from __future__ import annotations

from sliceplane.nft.objects import AddChain, AddContainer, AddRule, Command, Container, Hook, Rule
from sliceplane.nft.statements import CtStateNew, CtStatusDnat, Field, InSet, Jump, Masquerade, Reject, ResetTcp, Vmap

_PRIORITY_DSTNAT = -100
_PRIORITY_FILTER = 0
_PRIORITY_SRCNAT = 100

REJECT_CHAIN = "reject-chain"
_SERVICES = "services"
_ENDPOINTS_CHECK = "service-endpoints-check"
_CLUSTER_IPS_CHECK = "cluster-ips-check"
_MASQUERADING = "masquerading"

CLUSTER_IPS = Container("cluster-ips", ("addr",))
HAIRPIN = Container("hairpin-connections", ("addr", "addr", "proto", "port"))
SERVICE_IPS = Container("service-ips", ("addr", "proto", "port"), "verdict")
NO_ENDPOINTS = Container("no-endpoint-services", ("addr", "proto", "port"), "verdict")
CONTAINERS = (CLUSTER_IPS, HAIRPIN, NO_ENDPOINTS, SERVICE_IPS)

_DESTINATION: tuple[Field, ...] = ("daddr", "proto", "dport")

BASE_CHAINS = (
    AddChain("filter-input", Hook("filter", "input", _PRIORITY_FILTER)),
    AddChain("filter-forward", Hook("filter", "forward", _PRIORITY_FILTER)),
    AddChain("filter-output", Hook("filter", "output", _PRIORITY_FILTER)),
    AddChain("nat-prerouting", Hook("nat", "prerouting", _PRIORITY_DSTNAT)),
    AddChain("nat-output", Hook("nat", "output", _PRIORITY_DSTNAT)),
    AddChain("nat-postrouting", Hook("nat", "postrouting", _PRIORITY_SRCNAT)),
)
_CHAINS = tuple(
    AddChain(name) for name in (_CLUSTER_IPS_CHECK, _MASQUERADING, REJECT_CHAIN, _ENDPOINTS_CHECK, _SERVICES)
)
_RULES: tuple[tuple[str, Rule], ...] = (
    (REJECT_CHAIN, Rule((ResetTcp(),))),
    (REJECT_CHAIN, Rule((Reject(),))),
    (_SERVICES, Rule((Vmap(_DESTINATION, SERVICE_IPS.name),))),
    (_ENDPOINTS_CHECK, Rule((Vmap(_DESTINATION, NO_ENDPOINTS.name),))),
    (_CLUSTER_IPS_CHECK, Rule((InSet(("daddr",), CLUSTER_IPS.name), Jump(REJECT_CHAIN)))),
    (
        _MASQUERADING,
        Rule((CtStatusDnat(), InSet(("saddr", "daddr", "proto", "dport"), HAIRPIN.name), Masquerade())),
    ),
    ("nat-prerouting", Rule((Jump(_SERVICES),))),
    ("nat-output", Rule((Jump(_SERVICES),))),
    ("nat-postrouting", Rule((Jump(_MASQUERADING),))),
    ("filter-input", Rule((CtStateNew(), Jump(_ENDPOINTS_CHECK)))),
    ("filter-forward", Rule((CtStateNew(), Jump(_ENDPOINTS_CHECK)))),
    ("filter-forward", Rule((CtStateNew(), Jump(_CLUSTER_IPS_CHECK)))),
    ("filter-output", Rule((CtStateNew(), Jump(_ENDPOINTS_CHECK)))),
    ("filter-output", Rule((CtStateNew(), Jump(_CLUSTER_IPS_CHECK)))),
)


def static_commands() -> tuple[Command, ...]:
    """Everything but the services, for a table that is empty."""
    return (
        *BASE_CHAINS,
        *_CHAINS,
        *(AddContainer(container) for container in CONTAINERS),
        *(AddRule(chain, rule) for chain, rule in _RULES),
    )
