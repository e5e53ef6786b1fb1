"""Tells the kernel what ``node.configuration.sysctls`` decided, in the network namespace of the
rules.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sliceplane.kit.io.log import get_logger
from sliceplane.node.configuration.settings import ConntrackSettings
from sliceplane.node.configuration.sysctls import MAX, Sysctl, conntrack_sysctls, hash_buckets
from sliceplane.node.io.kernel.netns import within

SYSCTLS: Final = Path("/proc/sys/net/netfilter")
HASHSIZE: Final = Path("/sys/module/nf_conntrack/parameters/hashsize")
OOM_SCORE_ADJ: Final = Path("/proc/self/oom_score_adj")

_log = get_logger("node-proxy")


class SysctlError(Exception):
    """What the configuration asks for cannot be had; ``str()`` is one sentence for people."""


async def tune_conntrack(
    settings: ConntrackSettings,
    netns: str = "",
    *,
    folder: Path = SYSCTLS,
    hashsize: Path = HASHSIZE,
) -> None:
    """Writes what differs.  A default that cannot be written is told of in the log.  Raises
    ``SysctlError``."""
    wanted = conntrack_sysctls(settings, os.cpu_count() or 1)
    try:
        problems = await within(netns, lambda: [_write(folder, sysctl) for sysctl in wanted])
    except OSError as error:
        raise SysctlError(
            f'the network namespace "{netns}" cannot be entered: {error.strerror}'
        ) from error
    for sysctl, problem in zip(wanted, problems, strict=True):
        if not problem:
            continue
        if sysctl.asked:
            zero = "maxPerCore: 0" if sysctl.name == MAX else "0s"
            hint = (
                "leave it out"
                if sysctl.name == "nf_conntrack_tcp_be_liberal"
                else f"{zero} leaves it alone"
            )
            raise SysctlError(
                f"{sysctl.field}: {sysctl.name} cannot be set to {sysctl.value}: {problem} ({hint})"
            )
        _log.warning(
            "a default of conntrack cannot be set",
            sysctl=sysctl.name,
            value=sysctl.value,
            problem=problem,
        )
    bounds = [
        sysctl.value
        for sysctl, problem in zip(wanted, problems, strict=True)
        if sysctl.name == MAX and not problem
    ]
    if bounds and not netns:  # one table for all namespaces
        _enlarge(hashsize, hash_buckets(bounds[0]))


def _write(folder: Path, sysctl: Sysctl) -> str:
    """Why it could not be; "" if the kernel has it."""
    path = folder / sysctl.name
    try:
        current = int(path.read_text())
        if current != sysctl.value and not (sysctl.only_raise and current > sysctl.value):
            path.write_text(f"{sysctl.value}\n")
    except OSError as error:
        return error.strerror or type(error).__name__
    except ValueError:
        return "the kernel has no number there"
    return ""


def _enlarge(hashsize: Path, buckets: int) -> None:
    try:
        if int(hashsize.read_text()) < buckets:
            hashsize.write_text(f"{buckets}\n")
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        _log.warning(
            "a default of conntrack cannot be set",
            sysctl="hashsize",
            value=buckets,
            problem=problem,
        )


def adjust_oom_score(score: int, path: Path = OOM_SCORE_ADJ) -> None:
    """How soon the kernel ends this process when memory is short.  That it cannot be said is
    logged, as upstream.
    """
    try:
        if int(path.read_text()) != score:
            path.write_text(f"{score}\n")
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        _log.warning("oom_score_adj cannot be set", value=score, problem=problem)
