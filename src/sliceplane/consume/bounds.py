"""How much of one Service a node serves.

A Service may be 1.5 MB of text, and rules are made for the product of what it lists: 5,000 external
IPs and 80 ports are 400,000 destinations in 68 KB. Every node pays for it, and all its other
Services wait. So each product has a bound of its own, far above what is in use, and what is beyond
it has no rules; which part that is follows from the object alone, so it is the same on every node:

* ports in the order of the spec;
* addresses in the order of the object, those of load balancers before external IPs, and each with
  all its ports;
* source ranges, of the first ``READ_MAX`` that are listed, in the order of their numbers (who is in
  a range beyond the bound may not pass);
* endpoints from the oldest slice to the newest (``slicecache``);
* targets that need a chain each (iptables; session affinity): those of this node, and the others in
  the order of their addresses. What the kernel does with chains grows with the square of their
  number: 250,000 of them, which 50 Pods and 5,000 ports are, took a node many minutes, and all its
  other Services waited.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: ports of a Service; there are 2,768 node ports, unless an API server is told otherwise
PORTS_MAX: Final = 5_000
#: external destinations of a Service in one family: addresses times ports
DESTINATIONS_MAX: Final = 1_000
#: rules for source ranges: ranges times ports
SOURCES_MAX: Final = 10_000
#: entries of a list that are read at all: 100,000 of them take a second of the parser's
READ_MAX: Final = 10_000
#: targets of a Service in one family: endpoints times ports; twice the largest Service that was
#: measured
TARGETS_MAX: Final = 250_000
#: the same where each target is a chain (iptables): 0.5 to 2 s of the kernel's; twice the Nodes of
#: the largest cluster
CHAINS_MAX: Final = 10_000
#: the same with session affinity, in any mode: a chain, a set of clients and two or three rules
#: each
STICKY_MAX: Final = 5_000


class Excess(NamedTuple):
    """How many of each a Service has beyond the bounds, in one family."""

    ports: int = 0
    addresses: int = 0
    source_ranges: int = 0
    #: in the largest of its ports
    targets: int = 0

    def __str__(self) -> str:
        """A sentence; "" if there is none."""
        parts = [
            f"{number:,} {what} beyond {bound}"
            for number, what, bound in (
                (self.ports, "ports", f"{PORTS_MAX:,}"),
                (
                    self.addresses,
                    "external addresses",
                    f"{DESTINATIONS_MAX:,} (addresses times ports)",
                ),
                (
                    self.source_ranges,
                    "loadBalancerSourceRanges",
                    f"{SOURCES_MAX:,} (ranges times ports)",
                ),
                (
                    self.targets,
                    "endpoints of a port",
                    "what a node serves by chains (endpoints times ports)",
                ),
            )
            if number
        ]
        return f"no rules are made for {' and '.join(parts)}" if parts else ""


def share(bound: int, ports: int) -> int:
    """How many of something each of *ports* ports may have; one at least."""
    return max(1, bound // max(1, ports))
