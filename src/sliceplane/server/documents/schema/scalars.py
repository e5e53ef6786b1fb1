"""Forms of scalar values: Go's times, quantities and base64, with the complaints that Go makes of
bad ones.

Each ``check_*`` returns the complaint about a text, "" if it is good. Times follow the rules of
Go's ``time.Parse``, which are not those of RFC 3339: an hour may have one digit, a fraction may
follow a layout that has none. Facts: the package documentation of Go's ``time``;
``staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/micro_time.go`` for MicroTime.

``go_type`` names the types of fields as Go does, for ``cannot unmarshal number into Go struct field
X of type T``. All packages of Kubernetes that we serve from are called ``v1`` there. The schemas do
not tell which strings have a type of their own; the table names those that people meet.
"""

from __future__ import annotations

import re
from calendar import monthrange
from typing import Final

from sliceplane.api.schema import SchemaField, Struct, Type

TIME_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
MICRO_TIME_LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"

QUANTITY_FORM: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_QUANTITY_SHAPE: Final = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
_QUANTITY_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
_QUANTITY_SUFFIX: Final = re.compile(r"|[KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,9}")
#: a good quantity, whole; for ``fast``
QUANTITY_PATTERN: Final = rf"^(?:{_QUANTITY_NUMBER.pattern})(?:{_QUANTITY_SUFFIX.pattern})\Z"

#: times that need no further look: a day that every such month has; for ``fast``
_DAY_PATTERN: Final = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_CLOCK_PATTERN: Final = r"T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
#: as they are stored, that is: others are good too, and are respelt; the zero time of Go is none
_YEAR_PATTERN: Final = r"(?!0000|0001)\d{4}"
TIME_PATTERN: Final = rf"^{_YEAR_PATTERN}-{_DAY_PATTERN}{_CLOCK_PATTERN}Z\Z".replace(r"\d", "[0-9]")
MICRO_TIME_PATTERN: Final = rf"^{_YEAR_PATTERN}-{_DAY_PATTERN}{_CLOCK_PATTERN}\.\d{{6}}Z\Z".replace(
    r"\d", "[0-9]"
)

BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z"
_BASE64: Final = re.compile(BASE64_PATTERN)
_BASE64_FOREIGN: Final = re.compile(r"[^A-Za-z0-9+/=]")
_GO_SCALARS: Final = {
    "any": "interface {}",
    "bool": "bool",
    "bytes": "[]uint8",
    "int32": "int32",
    "int64": "int64",
    "intOrString": "int32",
    "microTime": "string",
    "quantity": "resource.Quantity",
    "string": "string",
    "time": "string",
}
#: STRUCT.FIELD -> the named string type of the field, of its elements or of its values
_NAMED: Final = {
    "apps.DeploymentCondition.status": "v1.ConditionStatus",
    "apps.DeploymentCondition.type": "v1.DeploymentConditionType",
    "apps.DeploymentStrategy.type": "v1.DeploymentStrategyType",
    "core.Container.imagePullPolicy": "v1.PullPolicy",
    "core.ContainerPort.protocol": "v1.Protocol",
    "core.EndpointPort.protocol": "v1.Protocol",
    "core.NamespaceSpec.finalizers": "v1.FinalizerName",
    "core.NamespaceStatus.phase": "v1.NamespacePhase",
    "core.NodeAddress.type": "v1.NodeAddressType",
    "core.NodeCondition.status": "v1.ConditionStatus",
    "core.NodeCondition.type": "v1.NodeConditionType",
    "core.ObjectReference.uid": "types.UID",
    "core.PodCondition.status": "v1.ConditionStatus",
    "core.PodCondition.type": "v1.PodConditionType",
    "core.PodSpec.dnsPolicy": "v1.DNSPolicy",
    "core.PodSpec.restartPolicy": "v1.RestartPolicy",
    "core.PodStatus.phase": "v1.PodPhase",
    "core.Secret.type": "v1.SecretType",
    "core.ServicePort.protocol": "v1.Protocol",
    "core.ServiceSpec.externalTrafficPolicy": "v1.ServiceExternalTrafficPolicy",
    "core.ServiceSpec.internalTrafficPolicy": "v1.ServiceInternalTrafficPolicy",
    "core.ServiceSpec.ipFamilies": "v1.IPFamily",
    "core.ServiceSpec.ipFamilyPolicy": "v1.IPFamilyPolicy",
    "core.ServiceSpec.sessionAffinity": "v1.ServiceAffinity",
    "core.ServiceSpec.type": "v1.ServiceType",
    "discovery.EndpointPort.protocol": "v1.Protocol",
    "discovery.EndpointSlice.addressType": "v1.AddressType",
    "meta.ObjectMeta.uid": "types.UID",
    "meta.OwnerReference.uid": "types.UID",
}


def check_quantity(text: str) -> str:
    text = text.strip()
    shape = _QUANTITY_SHAPE.fullmatch(text)
    if shape is None:
        return QUANTITY_FORM
    if not _QUANTITY_NUMBER.fullmatch(shape[1]):
        return "unable to parse numeric part of quantity"
    if not _QUANTITY_SUFFIX.fullmatch(shape[2]):
        return "unable to parse quantity's suffix"
    return ""


def check_base64(text: str) -> str:
    """Standard base64 with padding; line breaks are passed over."""
    text = text.replace("\r", "").replace("\n", "")
    if _BASE64.match(text):
        return ""
    foreign = _BASE64_FOREIGN.search(text)
    padding = text.find("=")
    position = foreign.start() if foreign else padding if padding >= 0 else len(text) // 4 * 4
    return f"illegal base64 data at input byte {position}"


def quote(text: str) -> str:
    """A text in double quotes as Go's ``%q`` writes it, for the characters that occur."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return (
        '"' + "".join(escapes.get(c) or (c if c >= " " else f"\\x{ord(c):02x}") for c in text) + '"'
    )


class _Mismatch(Exception):
    """The rest of the text does not begin with the element of the layout."""


def check_time(text: str) -> str:
    return _TimeParser(text, TIME_LAYOUT).complaint()


def check_micro_time(text: str) -> str:
    return _TimeParser(text, MICRO_TIME_LAYOUT).complaint()


class _TimeParser:
    """One pass over one text.  ``rest`` is what is not read yet; ``element`` the part of the layout
    being read.
    """

    def __init__(self, text: str, layout: str) -> None:
        self.text = text
        self.layout = layout
        self.rest = text
        self.element = ""

    def complaint(self) -> str:
        try:
            problem = self._parse()
        except _Mismatch:
            return (
                f"parsing time {quote(self.text)} as {quote(self.layout)}: "
                f"cannot parse {quote(self.rest)} as {quote(self.element)}"
            )
        return f"parsing time {quote(self.text)}: {problem}" if problem else ""

    def _parse(self) -> str:
        year = self._number("2006", 4)
        self._literal("-")
        month = self._number("01", 2)
        if not 1 <= month <= 12:
            return "month out of range"
        self._literal("-")
        day = self._number("02", 2)
        self._literal("T")
        if self._number("15", 1) >= 24:
            return "hour out of range"
        self._literal(":")
        if self._number("04", 2) >= 60:
            return "minute out of range"
        self._literal(":")
        if self._number("05", 2) >= 60:
            return "second out of range"
        self._fraction()
        problem = self._zone()
        if problem:
            return problem
        if self.rest:
            return f"extra text: {quote(self.rest)}"
        # Go's year 0 is a leap year, as in the proleptic calendar; Python's calendar starts at 1.
        days = monthrange(year or 4, month)[1]
        return "" if 1 <= day <= days else "day out of range"

    def _number(self, element: str, digits: int) -> int:
        """A number of *digits* digits; of one or two where *digits* is 1."""
        self.element = element
        size = digits
        if digits == 1 and _all_digits(self.rest[:2], 2):
            size = 2
        head = self.rest[:size]
        if not _all_digits(head, size):
            raise _Mismatch
        self.rest = self.rest[size:]
        return int(head)

    def _literal(self, mark: str) -> None:
        self.element = mark
        if not self.rest.startswith(mark):
            raise _Mismatch
        self.rest = self.rest[1:]

    def _fraction(self) -> None:
        if self.layout is MICRO_TIME_LAYOUT:
            self.element = ".000000"
            if self.rest[:1] not in {".", ","} or not _all_digits(self.rest[1:7], 6):
                raise _Mismatch
            self.rest = self.rest[7:]
        elif self.rest[:1] in {".", ","} and _all_digits(self.rest[1:2], 1):
            self.rest = self.rest[1:].lstrip("0123456789")

    def _zone(self) -> str:
        self.element = "Z07:00"
        if self.rest.startswith("Z"):
            self.rest = self.rest[1:]
            return ""
        sign = self.rest[:1]
        hour = self.rest[1:3]
        colon = self.rest[3:4]
        minute = self.rest[4:6]
        if (
            colon != ":"
            or not sign
            or sign not in "+-"
            or not _all_digits(hour, 2)
            or not _all_digits(minute, 2)
        ):
            raise _Mismatch
        if int(hour) > 24:
            return "time zone offset hour out of range"
        if int(minute) > 60:
            return "time zone offset minute out of range"
        self.rest = self.rest[6:]
        return ""


def _all_digits(text: str, size: int) -> bool:
    return len(text) == size and text.isascii() and text.isdigit()


def go_type(kind: Type, owner: Struct | None = None, field: SchemaField | None = None) -> str:
    """Go's name of *kind*, which is the type of *field* of *owner*, or the type of its elements."""
    match kind.kind:
        case "struct":
            return f"v1.{kind.name.rpartition('.')[2]}"
        case "list":
            return f"[]{go_type(kind.element, owner, field)}"
        case "map" if kind.element.kind == "quantity":
            return "v1.ResourceList"
        case "map":
            return f"map[string]{go_type(kind.element, owner, field)}"
        case "string" if owner is not None and field is not None:
            return _NAMED.get(f"{owner.name}.{field.name}", "string")
        case scalar:
            return _GO_SCALARS[scalar]
