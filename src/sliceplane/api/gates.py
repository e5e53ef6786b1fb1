"""Feature gates: what each one was in every release, and which are on.

A gate is a promise that a feature can be switched off. The promise has a history (``GATES``): off
and opt-in while alpha, as a rule on while beta, and some time after general availability the switch
is locked. ``Gates`` is that history at one release, with an operator's choices on top. The newest
release is the default; to switch off what is locked by now, emulate a release in which it was not.

A gate that upstream has deleted since stays known here, so that manifests that name it keep
working: as its last entry has it. Sources: KEP-0752 "Release Versioning" and "Production
Readiness"; KEP-4444; pkg/features/kube_features.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Stage = Literal["ALPHA", "BETA", "GA"]
#: a Kubernetes release, such as (1, 36)
Release = tuple[int, int]

NEWEST: Final[Release] = (1, 36)
OLDEST: Final[Release] = (1, 16)
#: the oldest cluster that our controllers and proxies run against: since then servers keep all that
#: they write for Services of the same age (terminating endpoints since 1.22, hints since 1.24)
OLDEST_CLUSTER: Final[Release] = (1, 24)

ENDPOINT_SLICE: Final = "EndpointSlice"
ENDPOINT_SLICE_PROXYING: Final = "EndpointSliceProxying"
WINDOWS_ENDPOINT_SLICE_PROXYING: Final = "WindowsEndpointSliceProxying"
ENDPOINT_SLICE_NODE_NAME: Final = "EndpointSliceNodeName"
ENDPOINT_SLICE_TERMINATING_CONDITION: Final = "EndpointSliceTerminatingCondition"
TOPOLOGY_AWARE_HINTS: Final = "TopologyAwareHints"
SERVICE_TRAFFIC_DISTRIBUTION: Final = "ServiceTrafficDistribution"
PREFER_SAME_TRAFFIC_DISTRIBUTION: Final = "PreferSameTrafficDistribution"
ENDPOINT_SLICE_SUBSETTING: Final = "EndpointSliceSubsetting"
TOPOLOGY_AWARE_SUBSETTING: Final = "TopologyAwareSubsetting"
SHARDED_LIST_AND_WATCH: Final = "ShardedListAndWatch"

#: set many gates of one stage at once; a gate named by itself counts more
_ALL: Final[dict[str, Stage]] = {"AllAlpha": "ALPHA", "AllBeta": "BETA"}
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class Spec(msgspec.Struct, frozen=True):
    """A gate from release ``since`` on, until its next entry."""

    since: Release
    stage: Stage
    default: bool
    locked: bool = False


#: entries in the order of releases; before its first one, a gate does not exist and its feature is
#: off
GATES: Final[Mapping[str, tuple[Spec, ...]]] = {
    ENDPOINT_SLICE: (
        Spec((1, 16), "ALPHA", False),
        Spec((1, 17), "BETA", False),
        Spec((1, 18), "BETA", True),
        Spec((1, 21), "GA", True),
    ),
    ENDPOINT_SLICE_PROXYING: (
        Spec((1, 18), "ALPHA", False),
        Spec((1, 19), "BETA", True),
        Spec((1, 22), "GA", True),
    ),
    WINDOWS_ENDPOINT_SLICE_PROXYING: (
        Spec((1, 19), "ALPHA", False),
        Spec((1, 21), "BETA", True),
        Spec((1, 22), "GA", True),
    ),
    ENDPOINT_SLICE_NODE_NAME: (Spec((1, 20), "ALPHA", False), Spec((1, 21), "GA", True)),
    ENDPOINT_SLICE_TERMINATING_CONDITION: (
        Spec((1, 20), "ALPHA", False),
        Spec((1, 22), "BETA", True),
        Spec((1, 26), "GA", True, locked=True),
    ),
    TOPOLOGY_AWARE_HINTS: (
        Spec((1, 21), "ALPHA", False),
        Spec((1, 23), "BETA", False),
        Spec((1, 24), "BETA", True),
        Spec((1, 33), "GA", True, locked=True),
    ),
    SERVICE_TRAFFIC_DISTRIBUTION: (
        Spec((1, 30), "ALPHA", False),
        Spec((1, 31), "BETA", True),
        Spec((1, 33), "GA", True, locked=True),
    ),
    PREFER_SAME_TRAFFIC_DISTRIBUTION: (
        Spec((1, 33), "ALPHA", False),
        Spec((1, 34), "BETA", True),
        Spec((1, 35), "GA", True, locked=True),
    ),
    SHARDED_LIST_AND_WATCH: (Spec((1, 36), "ALPHA", False),),
    # Described in KEP-2030 and withdrawn before any release had them.
    ENDPOINT_SLICE_SUBSETTING: (Spec((1, 21), "ALPHA", False),),
    TOPOLOGY_AWARE_SUBSETTING: (Spec((1, 21), "ALPHA", False),),
}


class Gates(msgspec.Struct, frozen=True):
    """The enabled features. ``chosen``: the operator's settings, checked by ``parse``."""

    release: Release = NEWEST
    chosen: Mapping[str, bool] = msgspec.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, release: Release = NEWEST) -> Gates:
        """``A=true,B=false`` at *release*.  Raises ``ValueError`` with upstream's message."""
        chosen: dict[str, bool] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (part.strip() for part in pair.partition("="))
            if not equals:
                raise ValueError(f"missing bool value for {name}")
            if value not in _TRUE | _FALSE:
                why = f'strconv.ParseBool: parsing "{value}": invalid syntax'
                raise ValueError(f"invalid value of {name}={value}, err: {why}")
            on = value in _TRUE
            if name not in _ALL:
                spec = spec_at(name, release)
                if spec is None:
                    raise ValueError(f"unrecognized feature gate: {name}")
                if spec.locked and on != spec.default:
                    locked = str(spec.default).lower()
                    raise ValueError(
                        f"cannot set feature gate {name} to {str(on).lower()}, feature is locked "
                        f"to {locked}"
                    )
            chosen[name] = on
        return cls(release, dict(sorted(chosen.items())))

    def enabled(self, name: str) -> bool:
        """Returns True if the feature is on; off if the release does not have it yet."""
        assert name in GATES, f"no gate {name!r}"
        spec = spec_at(name, self.release)
        if spec is None:
            return False
        if name in self.chosen:
            return self.chosen[name]
        if not spec.locked:
            for group, stage in _ALL.items():
                if stage == spec.stage and group in self.chosen:
                    return self.chosen[group]
        return spec.default


def spec_at(name: str, release: Release) -> Spec | None:
    """The gate's entry that counts at *release*; ``None`` if it is not known, or not yet."""
    newest = None
    for spec in GATES.get(name, ()):
        if spec.since <= release:
            newest = spec
    return newest


def parse_release(text: str) -> Release:
    """``1.36``, with or without a leading ``v``.  Raises ``ValueError``."""
    major, dot, minor = text.strip().removeprefix("v").partition(".")
    release = (int(major), int(minor)) if dot and major.isdecimal() and minor.isdecimal() else None
    if release is None or not OLDEST <= release <= NEWEST:
        raise ValueError(
            f"{text!r} is not a release from {_release_text(OLDEST)} to {_release_text(NEWEST)}"
        )
    return release


def _release_text(release: Release) -> str:
    return ".".join(map(str, release))
