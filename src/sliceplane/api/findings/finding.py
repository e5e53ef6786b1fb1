"""One finding: a cause of the catalogue, met in one place."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from sliceplane.api.findings.codes import SEVERITIES, Severity, catalogue, cause_of

#: ``certain``: what was read admits nothing else. ``likely``: a probe, or a reader of the program,
#: could say otherwise
Certainty = Literal["certain", "likely", "possible"]


#: what begins a remedy that can be pasted
COMMANDS: Final = (
    "kubectl ",
    "sliceplane ",
    "nft ",
    "conntrack ",
    "ip ",
    "sysctl ",
    "helm ",
    "ethtool ",
    "iptables-legacy-save ",
)
#: commands with values of objects; the others have those of this machine
_OF_CLUSTERS: Final = ("kubectl ", "sliceplane ")
UNSAFE_REMEDY: Final = (
    "no command is shown: it would have a value with characters that a shell obeys"
)
#: parts of a command that a shell takes as they are, here-strings among them
_QUOTED: Final = re.compile(r"(?:<<< )?'[^']*'")
_OBEYED: Final = re.compile(r"[;&|`$(){}*?~#!\\<>\"'\x00-\x1f]")


class ObjectName(msgspec.Struct, frozen=True, order=True):
    """An object as a person names it.  ``plural`` is the resource's name with its group (``pods``,
    ``endpointslices.discovery.k8s.io``); ``namespace`` is "" for cluster scope."""

    plural: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind} {self.name}"
        )


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A field that proves a finding.

    ``field`` is a path as kubectl explain has it (``spec.selector``), keys of maps in brackets
    (``labels[app]``). ``value`` is the present value, ``was`` the one before, ``expected`` the
    right one, where known. ``writer`` and ``written`` (RFC 3339) are the user and the time of the
    last write; "" if unknown.
    """

    subject: ObjectName = msgspec.field(name="object")
    field: str
    value: str
    was: str = ""
    expected: str = msgspec.field(default="", name="wanted")
    writer: str = ""
    written: str = ""


class TooYoung(msgspec.Struct, frozen=True, rename="camel"):
    """The age of a state that is normal for a while, and the age from which on it is a fault."""

    age_seconds: float
    judged_after_seconds: float


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Its document (``as_document``) is made a finding again by ``msgspec.convert``.

    ``subject``: the object that is to be mended, or that suffers. ``effect``: what follows from it.
    ``remedy``: a command that can be pasted, or what to do where no command does it. ``weight``:
    how bad it is here, where that is not what its code says: of three Pods one that does not start
    is less than all of them. ``too_young``: a note that may turn out to be an error, and nothing is
    said to be well because of it.
    """

    code: str
    subject: ObjectName
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    effect: str = ""
    remedy: str = ""
    certainty: Certainty = "certain"
    weight: Severity | None = msgspec.field(default=None, name="severity")
    too_young: TooYoung | None = msgspec.field(default=None, name="tooYoung")

    def __post_init__(self) -> None:
        """Drops an unsafe remedy: users copy it into a shell, and objects fill its values."""
        if self.remedy.startswith(_OF_CLUSTERS) and _OBEYED.search(_QUOTED.sub("", self.remedy)):
            msgspec.structs.force_setattr(self, "remedy", UNSAFE_REMEDY)

    @property
    def severity(self) -> Severity:
        return "note" if self.too_young is not None else self.weight or cause_of(self.code).severity

    def as_document(self) -> dict[str, Any]:
        """Returns the document of ``--output json``: members in a fixed order, "" if unknown."""
        return {
            "code": self.code,
            "severity": self.severity,
            "certainty": self.certainty,
            "title": cause_of(self.code).title,
            "subject": name_document(self.subject),
            "sentence": self.sentence,
            "evidence": [
                {
                    "object": name_document(entry.subject),
                    "field": entry.field,
                    "value": entry.value,
                    "was": entry.was,
                    "wanted": entry.expected,
                    "writer": entry.writer,
                    "written": entry.written,
                }
                for entry in self.evidence
            ],
            "effect": self.effect,
            "remedy": self.remedy,
            "tooYoung": None if self.too_young is None else msgspec.to_builtins(self.too_young),
        }


def name_document(name: ObjectName) -> dict[str, str]:
    """As it stands in documents of findings."""
    return {"kind": name.kind, "namespace": name.namespace, "name": name.name}


def rank(finding: Finding) -> tuple[int, bool, int, ObjectName, str]:
    """Sorts by severity (too young to judge before other notes), then as the catalogue, which
    follows the path from a name to an endpoint.
    """
    position = list(catalogue()).index(finding.code)
    is_judged = finding.too_young is None
    return (
        SEVERITIES.index(finding.severity),
        is_judged,
        position,
        finding.subject,
        finding.sentence,
    )
