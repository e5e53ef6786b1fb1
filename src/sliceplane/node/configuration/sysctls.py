"""Kernel settings of connection tracking (upstream: ``cmd/kube-proxy/app/conntrack.go``).

Names are below ``/proc/sys/net/netfilter``. Upstream's defaults are optional: it is no error if the
kernel refuses one, and a higher bound is not lowered to the default.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from sliceplane.node.configuration.settings import ConntrackSettings

CONNTRACK_MAX_LIMIT: Final = 1_048_576
MAX: Final = "nf_conntrack_max"


class Sysctl(msgspec.Struct, frozen=True):
    """``configured``: the configuration has another value than the default, in ``field``.
    ``only_raise``: a greater value stays.
    """

    name: str
    value: int
    field: str
    configured: bool
    only_raise: bool = False


def conntrack_sysctls(settings: ConntrackSettings, cpus: int) -> tuple[Sysctl, ...]:
    """Returns the sysctls in the order of writing.  *cpus*: this machine's number of CPUs."""
    sysctls = []
    bound = conntrack_max(settings, cpus)
    if bound:
        configured = bool(settings.configured & {"maxPerCore", "min"})
        field = "maxPerCore" if "maxPerCore" in settings.configured or not configured else "min"
        sysctls.append(
            Sysctl(MAX, bound, f"conntrack.{field}", configured, only_raise=not configured)
        )
    if settings.tcp_be_liberal:
        sysctls.append(
            Sysctl("nf_conntrack_tcp_be_liberal", 1, "conntrack.tcpBeLiberal", configured=True)
        )
    for name, field, seconds in (
        (
            "nf_conntrack_tcp_timeout_established",
            "tcpEstablishedTimeout",
            settings.tcp_established_timeout_s,
        ),
        (
            "nf_conntrack_tcp_timeout_close_wait",
            "tcpCloseWaitTimeout",
            settings.tcp_close_wait_timeout_s,
        ),
        ("nf_conntrack_udp_timeout", "udpTimeout", settings.udp_timeout_s),
        ("nf_conntrack_udp_timeout_stream", "udpStreamTimeout", settings.udp_stream_timeout_s),
    ):
        if seconds > 0:
            sysctls.append(
                Sysctl(
                    name,
                    max(1, math.floor(seconds)),
                    f"conntrack.{field}",
                    field in settings.configured,
                )
            )
    return tuple(sysctls)


def conntrack_max(settings: ConntrackSettings, cpus: int) -> int:
    """Returns the maximum number of tracked connections; 0: the bound is not changed."""
    assert cpus > 0, f"{cpus} CPUs"
    if settings.max_per_core <= 0:
        return 0
    return min(max(settings.max_per_core * cpus, settings.min), CONNTRACK_MAX_LIMIT)


def hash_buckets(bound: int) -> int:
    """Returns the minimum number of buckets of the table for *bound* connections."""
    return bound // 4
