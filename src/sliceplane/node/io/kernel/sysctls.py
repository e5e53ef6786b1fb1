"""Writes the settings of ``node.configuration.sysctls``, in the network namespace of the rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sliceplane.kit.io.log import get_logger
from sliceplane.node.configuration.settings import ConntrackSettings
from sliceplane.node.configuration.sysctls import MAX, conntrack_sysctls, hash_buckets
from sliceplane.node.io.kernel.netns import within

SYSCTLS: Final = Path("/proc/sys/net/netfilter")
HASHSIZE: Final = Path("/sys/module/nf_conntrack/parameters/hashsize")
OOM_SCORE_ADJ: Final = Path("/proc/self/oom_score_adj")

_log = get_logger("node-proxy")


class SysctlError(Exception):
    """The kernel refuses a setting of the configuration; ``str()`` is one sentence for the user."""


async def tune_conntrack(
    settings: ConntrackSettings,
    netns: str = "",
    *,
    folder: Path = SYSCTLS,
    hashsize: Path = HASHSIZE,
) -> None:
    """Writes settings that differ.  A default that cannot be written is logged.  Raises
    ``SysctlError``.
    """
    desired = conntrack_sysctls(settings, os.cpu_count() or 1)
    try:
        problems = await within(
            netns,
            lambda: [
                _write(folder / sysctl.name, sysctl.value, only_raise=sysctl.only_raise)
                for sysctl in desired
            ],
        )
    except OSError as error:
        raise SysctlError(
            f'the network namespace "{netns}" cannot be entered: {error.strerror}'
        ) from error
    for sysctl, problem in zip(desired, problems, strict=True):
        if not problem:
            continue
        if sysctl.configured:
            zero = "maxPerCore: 0" if sysctl.name == MAX else "0s"
            hint = (
                "leave it out"
                if sysctl.name == "nf_conntrack_tcp_be_liberal"
                else f"{zero} leaves it alone"
            )
            raise SysctlError(
                f"{sysctl.field}: {sysctl.name} cannot be set to {sysctl.value}: {problem} ({hint})"
            )
        _log_default(sysctl.name, sysctl.value, problem)
    bounds = [
        sysctl.value
        for sysctl, problem in zip(desired, problems, strict=True)
        if sysctl.name == MAX and not problem
    ]
    if bounds and not netns:  # one table for all namespaces
        buckets = hash_buckets(bounds[0])
        problem = _write(hashsize, buckets, only_raise=True)
        if problem:
            _log_default("hashsize", buckets, problem)


def _log_default(sysctl: str, value: int, problem: str) -> None:
    _log.warning(
        "a default of conntrack cannot be set", sysctl=sysctl, value=value, problem=problem
    )


def _write(path: Path, value: int, *, only_raise: bool = False) -> str:
    """Writes *value* to *path*; returns the reason if that fails, "" otherwise. *only_raise*: a
    greater number stays.
    """
    try:
        current = int(path.read_text())
        if current != value and not (only_raise and current > value):
            path.write_text(f"{value}\n")
    except OSError as error:
        return error.strerror or type(error).__name__
    except ValueError:
        return "the kernel has no number there"
    return ""


def adjust_oom_score(score: int, path: Path = OOM_SCORE_ADJ) -> None:
    """Sets the OOM killer's score adjustment of this process.  A failure is logged, as upstream."""
    problem = _write(path, score)
    if problem:
        _log.warning("oom_score_adj cannot be set", value=score, problem=problem)
