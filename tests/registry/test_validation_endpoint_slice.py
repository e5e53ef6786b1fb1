"""EndpointSlice: one row for each rule, with the exact complaint
(``pkg/apis/discovery/validation/validation.go``).
"""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.errors import FieldError
from sliceplane.api.scheme import EndpointSlices
from sliceplane.server.registry.verbs.answers import validate_create, validate_update

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
NOT_AN_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"


def document(**members: Any) -> Any:
    return {
        "metadata": {"name": "s", "namespace": "default"},
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
        **members,
    }


def endpoint(**members: Any) -> Any:
    return {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {}, **members}]}


def at(address: str, kind: str = "IPv4") -> Any:
    return {"addressType": kind, "endpoints": [{"addresses": [address]}]}


def ports(*names: str, **more: Any) -> Any:
    return {"ports": [{"name": name, "protocol": "TCP", **more} for name in names]}


def names(count: int) -> list[Any]:
    return [{"name": f"n{index}"} for index in range(count)]


def told(errors: list[FieldError]) -> list[tuple[str, str]]:
    return [(error.type.removeprefix("FieldValue"), str(error)) for error in errors]


RULES: list[tuple[str, Any, list[tuple[str, str]]]] = [
    ("type missing", {"addressType": ""}, [("Required", "addressType: Required value")]),
    (
        "type unknown",
        {"addressType": "IP"},
        [
            (
                "NotSupported",
                'addressType: Unsupported value: "IP": supported values: "FQDN", "IPv4", "IPv6"',
            )
        ],
    ),
    (
        "too many ports stop port checks",
        {"ports": [{"name": "Bad", "protocol": "TCP"}] * 20001},
        [("TooMany", "ports: Too many: 20001: must have at most 20000 items")],
    ),
    ("port name", ports("A"), [("Invalid", f'ports[0].name: Invalid value: "A": {LABEL}')]),
    ("port names differ", ports("a", "a"), [("Duplicate", 'ports[1].name: Duplicate value: "a"')]),
    ("one unnamed port", ports(""), []),
    ("two unnamed ports", ports("", ""), [("Duplicate", 'ports[1].name: Duplicate value: ""')]),
    (
        "protocol missing",
        {"ports": [{"name": ""}]},
        [("Required", "ports[0].protocol: Required value")],
    ),
    (
        "protocol unknown",
        {"ports": [{"name": "", "protocol": "tcp"}]},
        [
            (
                "NotSupported",
                (
                    'ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", '
                    '"UDP"'
                ),
            )
        ],
    ),
    (
        "application protocol",
        ports("a", appProtocol="a b"),
        [("Invalid", f'ports[0].appProtocol: Invalid value: "a b": {QUALIFIED}')],
    ),
    ("application protocol with a prefix", ports("a", appProtocol="example.com/x"), []),
    ("port numbers are not checked", ports("a", port=0), []),
    ("port numbers may be huge", ports("a", port=99999), []),
    (
        "too many endpoints stop endpoint checks",
        {"endpoints": [{"addresses": []}] * 1001},
        [("TooMany", "endpoints: Too many: 1001: must have at most 1000 items")],
    ),
    (
        "no address",
        {"endpoints": [{"addresses": []}]},
        [("Required", "endpoints[0].addresses: Required value: must contain at least 1 address")],
    ),
    (
        "too many addresses, each still checked",
        {"endpoints": [{"addresses": [f"10.0.0.{index}" for index in range(100)] + ["x"]}]},
        [
            ("TooMany", "endpoints[0].addresses: Too many: 101: must have at most 100 items"),
            ("Invalid", f'endpoints[0].addresses[100]: Invalid value: "x": {NOT_AN_IP}'),
        ],
    ),
    (
        "not an address",
        at("x"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "x": {NOT_AN_IP}')],
    ),
    (
        "leading zeros",
        at("10.0.0.01"),
        [
            (
                "Invalid",
                'endpoints[0].addresses[0]: Invalid value: "10.0.0.01": must not have leading 0s',
            )
        ],
    ),
    (
        "mapped address",
        at("::ffff:10.0.0.1"),
        [
            (
                "Invalid",
                (
                    'endpoints[0].addresses[0]: Invalid value: "::ffff:10.0.0.1": must not be an '
                    "IPv4-mapped IPv6 address"
                ),
            )
        ],
    ),
    (
        "IPv6 in an IPv4 slice, told of the list",
        at("2001:db8::1"),
        [
            (
                "Invalid",
                'endpoints[0].addresses: Invalid value: "2001:db8::1": must be an IPv4 address',
            )
        ],
    ),
    (
        "IPv4 in an IPv6 slice",
        at("10.0.0.1", "IPv6"),
        [("Invalid", 'endpoints[0].addresses: Invalid value: "10.0.0.1": must be an IPv6 address')],
    ),
    (
        "IPv6 must be canonical",
        at("2001:DB8::1", "IPv6"),
        [
            (
                "Invalid",
                (
                    'endpoints[0].addresses[0]: Invalid value: "2001:DB8::1": must be in canonical '
                    'form ("2001:db8::1")'
                ),
            )
        ],
    ),
    (
        "unspecified",
        at("0.0.0.0"),
        [
            (
                "Invalid",
                (
                    'endpoints[0].addresses[0]: Invalid value: "0.0.0.0": may not be unspecified '
                    "(0.0.0.0)"
                ),
            )
        ],
    ),
    (
        "loopback",
        at("127.0.0.1"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "127.0.0.1": {LOOPBACK}')],
    ),
    (
        "loopback 6",
        at("::1", "IPv6"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "::1": {LOOPBACK}')],
    ),
    (
        "link-local",
        at("169.254.1.1"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "169.254.1.1": {LINK_LOCAL}')],
    ),
    (
        "link-local 6",
        at("fe80::1", "IPv6"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "fe80::1": {LINK_LOCAL}')],
    ),
    (
        "link-local multicast",
        at("224.0.0.9"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "224.0.0.9": {MULTICAST}')],
    ),
    (
        "link-local multicast 6",
        at("ff02::1", "IPv6"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "ff02::1": {MULTICAST}')],
    ),
    ("other multicast is fine", at("239.1.1.1"), []),
    ("duplicate addresses are fine", {"endpoints": [{"addresses": ["10.0.0.1", "10.0.0.1"]}]}, []),
    ("name missing", at("", "FQDN"), [("Required", "endpoints[0].addresses[0]: Required value")]),
    (
        "one label",
        at("com", "FQDN"),
        [
            (
                "Invalid",
                (
                    'endpoints[0].addresses[0]: Invalid value: "com": should be a domain with at '
                    "least two segments "
                    "separated by dots"
                ),
            )
        ],
    ),
    (
        "bad name",
        at("A.com", "FQDN"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "A.com": {SUBDOMAIN}')],
    ),
    (
        "long label",
        at(f"{'a' * 64}.com", "FQDN"),
        [
            (
                "Invalid",
                (
                    f'endpoints[0].addresses[0]: Invalid value: "{"a" * 64}": must be no more '
                    "than 63 "
                    "bytes"
                ),
            )
        ],
    ),
    ("trailing dot", at("example.com.", "FQDN"), []),
    (
        "unknown types leave addresses alone",
        {"addressType": "", "endpoints": [{"addresses": ["?"]}]},
        [("Required", "addressType: Required value")],
    ),
    (
        "node name",
        endpoint(nodeName="N"),
        [("Invalid", f'endpoints[0].nodeName: Invalid value: "N": {SUBDOMAIN}')],
    ),
    (
        "host name",
        endpoint(hostname="A"),
        [("Invalid", f'endpoints[0].hostname: Invalid value: "A": {LABEL}')],
    ),
    (
        "host name with dots",
        endpoint(hostname="a.b"),
        [("Invalid", 'endpoints[0].hostname: Invalid value: "a.b": must not contain dots')],
    ),
    (
        "too much topology",
        endpoint(deprecatedTopology={f"k{index}": "v" for index in range(17)}),
        [("TooMany", "endpoints[0].deprecatedTopology: Too many: 17: must have at most 16 items")],
    ),
    (
        "bad topology",
        endpoint(deprecatedTopology={"k": "a b"}),
        [("Invalid", f'endpoints[0].deprecatedTopology: Invalid value: "a b": {LABEL_VALUE}')],
    ),
    (
        "zone in the topology",
        endpoint(deprecatedTopology={"topology.kubernetes.io/zone": "z"}),
        [
            (
                "InternalError",
                (
                    "endpoints[0].deprecatedTopology[topology.kubernetes.io/zone]: Internal "
                    "error: reserved "
                    "key was not "
                    "removed in conversion"
                ),
            )
        ],
    ),
    (
        "too many zones stop hint checks",
        endpoint(hints={"forZones": names(9), "forNodes": names(9)}),
        [("TooMany", "endpoints[0].hints.forZones: Too many: 9: must have at most 8 items")],
    ),
    (
        "zone twice",
        endpoint(hints={"forZones": [{"name": "z"}, {"name": "z"}]}),
        [("Duplicate", 'endpoints[0].hints.forZones[1].name: Duplicate value: "z"')],
    ),
    (
        "bad zone",
        endpoint(hints={"forZones": [{"name": "a b"}]}),
        [("Invalid", f'endpoints[0].hints.forZones[0].name: Invalid value: "a b": {LABEL_VALUE}')],
    ),
    ("an empty zone is accepted", endpoint(hints={"forZones": [{"name": ""}]}), []),
    (
        "too many nodes",
        endpoint(hints={"forNodes": names(9)}),
        [("TooMany", "endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items")],
    ),
    (
        "node twice",
        endpoint(hints={"forNodes": [{"name": "n"}, {"name": "n"}]}),
        [("Duplicate", 'endpoints[0].hints.forNodes[1].name: Duplicate value: "n"')],
    ),
    (
        "bad node",
        endpoint(hints={"forNodes": [{"name": "N"}]}),
        [("Invalid", f'endpoints[0].hints.forNodes[0].name: Invalid value: "N": {SUBDOMAIN}')],
    ),
    (
        "20000 ports",
        {"ports": [{"name": f"p{index}", "protocol": "TCP"} for index in range(20000)]},
        [],
    ),
    ("1000 endpoints", {"endpoints": [{"addresses": ["10.0.0.1"]}] * 1000}, []),
    (
        "100 addresses",
        {"endpoints": [{"addresses": [f"10.0.0.{index}" for index in range(100)]}]},
        [],
    ),
    (
        "8 hints of each kind",
        endpoint(hints={"forZones": names(8), "forNodes": names(8)}),
        [],
    ),
    (
        "16 keys of topology",
        endpoint(deprecatedTopology={f"k{index}": "v" for index in range(16)}),
        [],
    ),
    (
        "key of the topology",
        endpoint(deprecatedTopology={"a b": "v"}),
        [("Invalid", f'endpoints[0].deprecatedTopology: Invalid value: "a b": {QUALIFIED}')],
    ),
    (
        "too many zones leave nodes unchecked",
        endpoint(hints={"forZones": names(9), "forNodes": [{"name": "N"}]}),
        [("TooMany", "endpoints[0].hints.forZones: Too many: 9: must have at most 8 items")],
    ),
    (
        "unspecified 6",
        at("::", "IPv6"),
        [
            (
                "Invalid",
                'endpoints[0].addresses[0]: Invalid value: "::": may not be unspecified (::)',
            )
        ],
    ),
    (
        "the whole loopback range",
        at("127.255.255.254"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "127.255.255.254": {LOOPBACK}')],
    ),
    ("just outside link-local", at("169.253.255.255"), []),
    ("just outside link-local multicast", at("224.0.1.0"), []),
    ("broadcast is not asked about", at("255.255.255.255"), []),
    ("site-local multicast 6 is fine", at("ff05::1", "IPv6"), []),
    (
        "a mapped address in an IPv6 slice",
        at("::ffff:10.0.0.1", "IPv6"),
        [
            (
                "Invalid",
                (
                    'endpoints[0].addresses[0]: Invalid value: "::ffff:10.0.0.1": must not be an '
                    "IPv4-mapped IPv6 address"
                ),
            )
        ],
    ),
    (
        "an address with a zone",
        at("fe80::1%eth0", "IPv6"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "fe80::1%eth0": {NOT_AN_IP}')],
    ),
    ("an address is a name as well", at("10.0.0.1", "FQDN"), []),
    (
        "two trailing dots",
        at("example.com..", "FQDN"),
        [("Invalid", f'endpoints[0].addresses[0]: Invalid value: "example.com.": {SUBDOMAIN}')],
    ),
    (
        "an empty application protocol",
        ports("a", appProtocol=""),
        [
            ("Invalid", f'ports[0].appProtocol: Invalid value: "": {problem}')
            for problem in ("name part must be non-empty", QUALIFIED)
        ],
    ),
    ("port numbers may be negative", ports("a", port=-1), []),
    ("no port number", ports("a"), []),
    (
        "zone, target and conditions are free",
        endpoint(zone="?", targetRef={"kind": "?"}, conditions={"ready": True}),
        [],
    ),
]


@pytest.mark.parametrize(
    ("members", "expected"), [row[1:] for row in RULES], ids=[row[0] for row in RULES]
)
def test_rule(members: Any, expected: list[tuple[str, str]]) -> None:
    assert told(validate_create(EndpointSlices, document(**members))) == expected


def test_order_of_complaints() -> None:
    bad = document(addressType="", ports=[{"name": "A"}], endpoints=[{"addresses": []}])
    bad["metadata"]["name"] = "S"
    fields = [error.field for error in validate_create(EndpointSlices, bad)]
    assert fields == [
        "metadata.name",
        "addressType",
        "ports[0].name",
        "ports[0].protocol",
        "endpoints[0].addresses",
    ]


def test_the_type_is_immutable() -> None:
    old = document()
    assert told(validate_update(EndpointSlices, document(addressType="IPv6"), old)) == [
        ("Invalid", 'addressType: Invalid value: "IPv6": field is immutable')
    ]


def test_unchanged_endpoints_are_not_asked_about() -> None:
    bad = at("127.0.0.1")
    old = document(**bad)
    relabelled = document(**bad)
    relabelled["metadata"] = {**old["metadata"], "labels": {"a": "b"}}
    assert validate_update(EndpointSlices, relabelled, old) == []
    more = document(endpoints=[*bad["endpoints"], {"addresses": ["10.0.0.1"]}])
    assert [error.field for error in validate_update(EndpointSlices, more, old)] == [
        "endpoints[0].addresses[0]"
    ]


def test_ports_are_always_asked_about() -> None:
    bad = ports("", "")
    assert [
        error.type for error in validate_update(EndpointSlices, document(**bad), document(**bad))
    ] == ["FieldValueDuplicate"]
