"""Redaction of Pod templates by their schema: what a recording keeps of a template is listed here,
all else is hidden.

A template is a document that a user wrote, with passwords in arguments, hooks, headers of probes
and attributes of volumes. The walk follows ``core.PodTemplateSpec``, so a field that a later
version of Kubernetes adds is hidden by itself. A value is kept if

- its type cannot hold a text (numbers, booleans, quantities, times), or
- its field is in ``KEPT``: controllers decide on it, the timeline names it, or it is an identifier,
  or
- it is one of ``PUBLIC``: constants of the API and defaults that the server writes itself.

Every other text becomes a token, each key of a map too, and the document keeps its shape: a
simulation that goes on from a recording can still create the Pod. A member that the schema lacks,
or whose value has another type, is hidden as a whole, name included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from sliceplane.api.schema import Struct, Type, struct

#: turns a text into its token
Hide = Callable[[str], str]

#: definition -> fields whose texts are kept, for the reason beside them
KEPT: Final[dict[str, frozenset[str]]] = {
    name: frozenset(fields.split())
    for name, fields in {
        # identity and ownership; annotations have a rule of their own (``redact``)
        "meta.ObjectMeta": "name generateName namespace uid resourceVersion labels finalizers",
        "meta.OwnerReference": "apiVersion kind name uid",
        # scheduling, which the DaemonSet controller decides on
        "core.PodSpec": "hostname subdomain nodeName nodeSelector overhead priorityClassName schedulerName",
        "core.NodeSelectorRequirement": "key operator values",
        "core.PodAffinityTerm": "topologyKey namespaces matchLabelKeys mismatchLabelKeys",
        "core.Toleration": "key operator value effect",
        "core.TopologySpreadConstraint": "topologyKey matchLabelKeys",
        "meta.LabelSelector": "matchLabels",
        "meta.LabelSelectorRequirement": "key operator values",
        # readiness and ports, by which endpoints are resolved and emulated nodes chosen
        "core.PodReadinessGate": "conditionType",
        "core.ContainerPort": "name protocol hostIP",
        "core.HTTPGetAction": "port",
        "core.TCPSocketAction": "port",
        # names of elements, by which the timeline tells them apart; the image is what a rollout is
        # about
        "core.Container": "name image",
        "core.EphemeralContainer": "name image",
        "core.EnvVar": "name",
        "core.Volume": "name",
        "core.VolumeMount": "name",
        # requests and limits: their keys are names of resources
        "core.ResourceRequirements": "limits requests",
        "core.VolumeResourceRequirements": "limits requests",
    }.items()
}
_CONSTANTS: Final = """
    Always IfNotPresent Never OnFailure ClusterFirst ClusterFirstWithHostNet Default None TCP UDP SCTP HTTP HTTPS File
    FallbackToLogsOnError /dev/termination-log default-scheduler PreemptLowerPriority RuntimeDefault Unconfined
    Localhost Memory Filesystem Block ReadWriteOnce ReadOnlyMany ReadWriteMany ReadWriteOncePod Directory
    DirectoryOrCreate FileOrCreate Socket CharDevice BlockDevice HostToContainer Bidirectional DoNotSchedule
    ScheduleAnyway Honor Ignore NotRequired RestartContainer OnRootMismatch Merge Strict linux windows v1 /
"""
#: constants of the API and defaults of the server, which tell nothing of a user; and no text at all
PUBLIC: Final = frozenset((*_CONSTANTS.split(), ""))
_TEMPLATE: Final = "core.PodTemplateSpec"
#: types whose texts the server parses as numbers and moments
_TEXTLESS: Final = frozenset(("quantity", "time", "microTime"))
#: of a ControllerRevision's patch (``emulation.history``)
_DIRECTIVE: Final = "$patch"


class TemplateWalk:
    """Owned by one ``Redactor``.  *annotations* redacts the annotations of metadata."""

    def __init__(
        self, hide: Hide, annotations: Callable[[dict[str, str]], dict[str, str] | None]
    ) -> None:
        self._hide = hide
        self._annotations = annotations

    def template(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """A Pod template, or a whole Pod: its spec and metadata have the same schema."""
        redacted: dict[str, Any] = self._struct(template, struct(_TEMPLATE))
        return redacted

    def revision(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of a ControllerRevision, which is a patch that restores a template; anything
        else is hidden.
        """
        spec = data.get("spec")
        template = (
            spec.get("template")
            if len(data) == 1 and isinstance(spec, dict) and len(spec) == 1
            else None
        )
        if not isinstance(template, dict):
            return self._unknown(data)
        directive = {_DIRECTIVE: "replace"} if template.get(_DIRECTIVE) == "replace" else {}
        rest = {name: member for name, member in template.items() if name not in directive}
        return {"spec": {"template": {**directive, **self.template(rest)}}}

    def _struct(self, value: Mapping[str, Any], schema: Struct) -> dict[str, Any]:
        kept = KEPT.get(schema.name, frozenset())
        members: dict[str, Any] = {}
        for name, member in value.items():
            field = schema.fields.get(name)
            if field is None:
                members |= self._unknown({name: member})
            elif (
                schema.name == "meta.ObjectMeta" and name == "annotations" and _is_text_map(member)
            ):
                members[name] = self._annotations(member)
            else:
                members[name] = self._value(member, field.type, kept=name in kept)
        return members

    def _value(self, value: Any, kind: Type, *, kept: bool) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            is_scalar = kind.item is None and kind.kind not in ("struct", "any")
            is_public = is_scalar and (kept or kind.kind in _TEXTLESS)
            return value if is_public or value in PUBLIC else self._hide(value)
        if kind.kind == "struct" and isinstance(value, dict):
            return self._struct(value, struct(kind.name))
        if kind.kind == "list" and isinstance(value, list):
            return [self._value(item, kind.element, kept=kept) for item in value]
        if kind.kind == "map" and isinstance(value, dict):
            return {
                name if kept else self._hide(name): self._value(member, kind.element, kept=kept)
                for name, member in value.items()
            }
        return self._hide(_text(value))

    def _unknown(self, members: Mapping[str, Any]) -> dict[str, Any]:
        return {self._hide(name): self._hide(_text(member)) for name, member in members.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(member, str) for member in value.values())
