"""Validation of the configured fields (``pkg/proxy/apis/config/validation/validation.go``, and
limits of this proxy), and notes on fields without effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, get_args

from sliceplane.api.errors import (
    FieldError,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from sliceplane.api.gates import NEWEST, Gates, Release
from sliceplane.api.service_rules import is_port
from sliceplane.kit.ip import parse_network_lenient, parse_strict
from sliceplane.kit.times import format_duration
from sliceplane.node.configuration.fields import (
    BACK_ENDS,
    BY_PATH,
    DEFAULT_MODE,
    MASQUERADE_BIT,
    MODE_SECTIONS,
    effective_mode,
    section_of,
)
from sliceplane.node.configuration.settings import FieldValues, sectioned, split_listen, value_of
from sliceplane.node.context import PRIMARY, DetectLocalMode

#: supported values of ``mode``
MODES: Final = ("", *BACK_ENDS)
DETECT_LOCAL_MODES: Final = get_args(DetectLocalMode)
#: names that nft accepts between quotes; the kernel's bound is 15 bytes
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
_CIDR: Final = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"


def errors_of(
    values: FieldValues, *, modes: tuple[str, ...] = MODES, release: Release = NEWEST
) -> list[FieldError]:
    """Returns the errors, in the order of the fields.  *modes*: supported values of ``mode``."""
    errors = [
        *_mode(values, modes),
        *_addresses(values),
        *_networks(values),
        *_local_detection(values),
        *_numbers(values),
        *_gates(values, release),
    ]
    return sorted(errors, key=lambda error: error.field)


def notes_on(values: FieldValues) -> tuple[FieldError, ...]:
    """Returns notes for the administrator: on an empty mode, and on each field whose value is not
    the default and has no effect, with the reason.
    """
    notes = []
    mode = str(value_of(values, "mode"))
    if not mode:
        notes.append(
            FieldError(
                "", "mode", f"is empty, which is {DEFAULT_MODE} here, and iptables for kube-proxy"
            )
        )
    counted = {effective_mode(mode), *(() if mode else ("iptables",))}
    for path, value in values.items():
        field = BY_PATH[path]
        section = section_of(path)
        if value == field.default:
            continue
        if section in MODE_SECTIONS and section not in counted:
            notes.append(FieldError("", path, f"has no effect in mode {effective_mode(mode)}"))
        elif field.idle:
            notes.append(FieldError("", path, f"has no effect: {field.idle}"))
    return tuple(notes)


def _mode(values: FieldValues, modes: tuple[str, ...]) -> Iterator[FieldError]:
    mode = value_of(values, "mode")
    if mode not in modes:
        yield not_supported("mode", mode, modes)
    for section in ("iptables", "nftables"):
        path = f"{section}.masqueradeBit"
        bit = value_of(values, path)
        if not 0 <= bit <= 31:
            yield invalid_value(path, bit, "must be within the range [0, 31]")
        elif bit != MASQUERADE_BIT and section in {
            effective_mode(str(mode)),
            "iptables" if not mode else "",
        }:
            yield not_supported(path, bit, (str(MASQUERADE_BIT),))


def _addresses(values: FieldValues) -> Iterator[FieldError]:
    address = value_of(values, "bindAddress")
    if parse_strict(address) is None:
        yield invalid_value("bindAddress", address, "must be a valid IP address")
    for path in ("healthzBindAddress", "metricsBindAddress"):
        text = value_of(values, path)
        host, port = split_listen(text)
        if ":" not in text:
            yield invalid_value(path, text, "must be IP:port")
        elif parse_strict(host) is None:
            yield invalid_value(path, text, "must be a valid IP")
        elif not is_port(port):
            yield invalid_value(path, text, "must be a valid port")
    name = values.get("hostnameOverride")
    if name is not None and not str(name).strip():
        yield invalid_value("hostnameOverride", name, "must not be empty")


def _networks(values: FieldValues) -> Iterator[FieldError]:
    text = str(value_of(values, "clusterCIDR"))
    ranges = [part.strip() for part in text.split(",")] if text else []
    if any(parse_network_lenient(part) is None for part in ranges):
        yield invalid_value("clusterCIDR", text, _CIDR)
    elif len(ranges) > 2 or len({":" in part for part in ranges}) != len(ranges):
        yield invalid_value(
            "clusterCIDR",
            text,
            "must be either a single CIDR block or a dual-stack pair of CIDR blocks",
        )
    addresses = value_of(values, "nodePortAddresses")
    for index, part in enumerate(addresses):
        path = f"nodePortAddresses[{index}]"
        if part == PRIMARY:
            if len(addresses) > 1:
                yield invalid_value(path, part, "can't use both 'primary' and CIDRs")
        elif parse_network_lenient(part) is None:
            yield invalid_value(path, part, "must be a valid CIDR")


def _local_detection(values: FieldValues) -> Iterator[FieldError]:
    mode = value_of(values, "detectLocalMode")
    if mode not in DETECT_LOCAL_MODES:
        yield not_supported("detectLocalMode", mode, DETECT_LOCAL_MODES)
    for name, expected in (
        ("bridgeInterface", "BridgeInterface"),
        ("interfaceNamePrefix", "InterfaceNamePrefix"),
    ):
        path = f"detectLocal.{name}"
        text = value_of(values, path)
        if mode == expected and not text:
            yield required(path, f"by detectLocalMode {expected}")
        elif text and not _INTERFACE.fullmatch(text):
            yield invalid_value(
                path, text, "must be the name of an interface, or the beginning of one"
            )


def _numbers(values: FieldValues) -> Iterator[FieldError]:
    oom = value_of(values, "oomScoreAdj")
    if not -1000 <= oom <= 1000:
        yield invalid_value("oomScoreAdj", oom, "must be within the range [-1000, 1000]")
    for path in ("maxPerCore", "min"):
        if value_of(values, f"conntrack.{path}") < 0:
            yield invalid_value(
                f"conntrack.{path}",
                values[f"conntrack.{path}"],
                "must be greater than or equal to 0",
            )
    for path, value in values.items():
        if BY_PATH[path].kind != "duration":
            continue
        assert isinstance(value, float), f"{path}: {value!r} is no duration"
        if path.endswith(("syncPeriod", "configSyncPeriod")):
            if value <= 0:
                yield invalid_value(path, format_duration(value), "must be greater than 0")
        elif value < 0:
            yield invalid_value(path, format_duration(value), "must be greater than or equal to 0")
    period = sectioned(values, "syncPeriod")
    pause = sectioned(values, "minSyncPeriod")
    if pause > period > 0:
        section = next(
            (name for name in ("nftables", "iptables") if f"{name}.minSyncPeriod" in values),
            DEFAULT_MODE,
        )
        yield invalid_value(
            f"{section}.minSyncPeriod",
            format_duration(pause),
            f"must not be greater than syncPeriod, which is {format_duration(period)}",
        )


def _gates(values: FieldValues, release: Release) -> Iterator[FieldError]:
    for name, on in value_of(values, "featureGates"):
        try:
            Gates.parse(f"{name}={str(on).lower()}", release)
        except ValueError as error:
            yield forbidden_field(f"featureGates.{name}", str(error))
