"""One query from the first read to the answer, without I/O.

The caller reads the ``pending_reads``, passes each page through ``decoded``, and each result to
``on_list`` or ``on_refused``, until no read is pending; then ``answer`` is the explanation. Each
link of the chain lists its reads, and more of them after each read, so that little is read of a
large cluster. The last reads are of the objects in the evidence, because only whole objects have
the writers.

``everything`` (``sliceplane lint``) lists the cluster once and creates a case for each Service;
nothing is read for a single Service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from sliceplane.api.findings.finding import Evidence, Finding, ObjectName, rank
from sliceplane.api.meta import Object
from sliceplane.api.requests import PortProbe, ProbeOutcome, Selection
from sliceplane.diagnose.explain.case import ExplainCase, NodeCase, PodCase, ServiceCase, ZoneCase
from sliceplane.diagnose.explain.chain import CHAIN, KERNEL, LAST_RESORT, Link
from sliceplane.diagnose.explain.checks import names, zones
from sliceplane.diagnose.explain.checks.consumers import VIEWS
from sliceplane.diagnose.explain.checks.pods.states import LEASES_OF_NODES
from sliceplane.diagnose.explain.checks.policies import backends_of
from sliceplane.diagnose.explain.checks.slices import nothing_ready
from sliceplane.diagnose.explain.facts import Facts, Unread
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.explain.objects import (
    CONFIG_MAPS,
    EVENTS,
    INGRESSES,
    LEASES,
    PODS,
    READABLES,
    SERVICES,
    Readable,
    warnings_in,
)
from sliceplane.diagnose.explain.pool import MemberPool
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation
from sliceplane.diagnose.explain.summary import summarize
from sliceplane.diagnose.explain.writers import (
    FieldsEntry,
    RememberedWrite,
    last_write,
    managed_fields,
    noted_writes,
    with_user,
)

#: findings whose last writers are read
WITH_WRITERS_MAX: Final = 5
#: addresses of slices whose Pods may be of any namespace, and are read one by one
LOOKUPS_MAX: Final = 8
#: names of the kinds that are read are DNS names; people paste commands with them
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
#: kinds that must have been read before anything is reported as well, by kind of query
_NEEDED: Final = {
    "service": ("Service", "EndpointSlice"),
    "everything": ("Service", "EndpointSlice"),
    "pod": ("Pod", "Service"),
    "node": ("Node",),
    "zone": ("Node", "Service", "EndpointSlice"),
}
#: first letters of codes, and codes, that can explain why no endpoint is ready
_REASONS: Final = ("B", "R", "T", "E", "C3", "D6", "S1", "S5")
#: members of metadata that are texts of their own in each object, and the kinds of which checks read
#: them
_READ_OF_KINDS: Final = {"resource_version": ("EndpointSlice",), "uid": ("Pod", "Service")}
_PROJECTIONS: Final[dict[str, Readable[Object]]] = {
    readable.resource.key: readable for readable in READABLES
}


class Investigation:
    """One query to one cluster. ``now``: seconds since the epoch, by the reader's clock."""

    def __init__(
        self,
        question: ExplainQuestion,
        now: float,
        kernel: KernelFacts | None = None,
        shadow: Iterable[Finding] = (),
    ) -> None:
        self.question = question
        self.facts = Facts(now, kernel, shadow)
        self._pool = MemberPool()
        #: the managers of the objects in the evidence
        self._managers: dict[Selection, tuple[FieldsEntry, ...]] = {}
        self._noted: dict[ObjectName, tuple[RememberedWrite, ...]] = {}
        self._findings: list[tuple[Link, Finding]] | None = None
        #: the cases after the last read, with their derived values; ``None``: too many to keep
        self._final_cases: tuple[ExplainCase, ...] | None = None

    def pending_reads(self) -> tuple[Selection, ...]:
        """Returns the next reads, in no order; empty: ``answer`` may be called."""
        if self._findings is None:
            unread = {
                selection: None
                for selection in self._reads()
                if not self.facts.is_answered(selection)
            }
            self._refuse_lookups([each for each in unread if _is_lookup(each)])
            unread = {each: None for each in unread if each not in self.facts.refusals}
            if unread:
                return tuple(unread)
            self._pool = MemberPool()
            if self._is_of_one:
                self._final_cases = tuple(self._cases())
            self._findings = list(self._run_checks())
        return tuple(
            selection
            for selection in self._evidence_reads()
            if selection not in self._managers and not self._was_refused(selection)
        )

    def _refuse_lookups(self, lookups: Sequence[Selection]) -> None:
        """Leaves the first ``LOOKUPS_MAX`` of *lookups*, which cost a request each."""
        for selection in lookups[LOOKUPS_MAX:]:
            reason = (
                f"{LOOKUPS_MAX} of {len(lookups)} addresses looked up, which takes a request each; "
                "sliceplane lint without -n sees all"
            )
            self.facts.refuse(Unread(selection, "list", reason))

    def decoded(
        self, selection: Selection, bodies: Sequence[bytes]
    ) -> Sequence[Object] | Sequence[bytes]:
        """Decodes one page of a list for ``on_list``; objects share equal members. Raises
        ``msgspec.DecodeError`` for an object of another kind.
        """
        if self._findings is not None:
            return bodies
        decoder = msgspec.json.Decoder(_PROJECTIONS[selection.resource.key].projection)
        objects: list[Object] = []
        for body in bodies:
            item = decoder.decode(body)
            if not _NAME.fullmatch(item.metadata.name) or not _NAME.fullmatch(
                item.metadata.namespace or "default"
            ):
                raise msgspec.ValidationError(f"{item.metadata.key!r} is no name of an object")
            # Items of lists lack their kind; these objects are not shared yet.
            msgspec.structs.force_setattr(item, "kind", selection.resource.kind)
            for member, kinds in _READ_OF_KINDS.items():
                if item.kind not in kinds:
                    msgspec.structs.force_setattr(item.metadata, member, "")
            self._pool.share(item)
            objects.append(item)
        return objects

    def on_list(self, selection: Selection, items: Sequence[Any]) -> None:
        """Takes *items*, the results of ``decoded`` for the pages of the list."""
        if self._findings is None:
            self.facts.take(selection, items)
        else:
            self._managers[selection] = managed_fields(items[0]) if items else ()

    def on_refused(self, selection: Selection, reason: str, *, verb: str = "list") -> None:
        """Notes a list that the server refused. *reason* is a phrase: "forbidden", "the server has
        no such resource".
        """
        if self._findings is not None:
            self._managers[selection] = ()
            return
        self.facts.refuse(Unread(selection, verb, reason))

    def named_objects(self) -> tuple[ObjectName, ...]:
        """Returns the objects in the evidence, once no read is pending: a server may remember their
        writers.
        """
        return tuple(self._evidence_names())

    def on_noted(self, name: ObjectName, page: bytes) -> None:
        """Takes the server's page with the writes of *name*."""
        self._noted[name] = noted_writes(page)

    def to_try(self) -> tuple[PortProbe, ...]:
        """Returns the targets of ``--probe``, once no read is pending."""
        cases = [case for case in self._cases() if isinstance(case, ServiceCase) and case.exists]
        return tuple(dict.fromkeys(target for case in cases for target in case.targets))

    def on_tried(self, outcomes: dict[PortProbe, ProbeOutcome]) -> None:
        """Takes the outcomes of the connections; ``pending_reads`` must be called again."""
        self.facts.tried = outcomes
        self._final_cases = self._findings = None

    def answer(self) -> Explanation:
        assert self._findings is not None, "pending_reads() still has reads"
        findings = self._without_repeats(
            sorted(
                {self._with_writers(finding): None for _, finding in self._findings}, key=self._rank
            )
        )
        broken = {link.name for link, _ in self._findings}
        blind = self._blind_links()
        kernel = self.facts.kernel
        incomplete = {*blind, *([KERNEL] if kernel is not None and kernel.unread else [])}
        return Explanation(
            question=self.question,
            findings=tuple(findings),
            summary=next((text for case in self._cases() if (text := summarize(case))), "")
            if self._is_of_one
            else "",
            well=tuple(name for name in self._checked_links() if name not in broken | incomplete),
            unchecked=(
                *(f"{name}: {reason}" for name, reason in blind.items()),
                *(
                    f"{KERNEL}: {phrase}"
                    for phrase in (kernel.unread if kernel is not None else ())
                ),
            ),
            missing_rights=tuple(
                dict.fromkeys(
                    unread.right for unread in self.facts.unread if unread.reason == FORBIDDEN
                )
            ),
            services=sum(isinstance(case, ServiceCase) and case.exists for case in self._cases()),
            is_blind=CHAIN[0].name in blind
            or any(selection in self.facts.refusals for selection in self._first_reads())
            or any(self._is_needed(unread.selection) for unread in self.facts.unread)
            or (kernel is not None and kernel.rules is None),
        )

    def _is_needed(self, selection: Selection) -> bool:
        """Returns True if nothing can be said to be well without *selection*."""
        kinds = _NEEDED.get(self.question.kind, ())
        return selection.resource.kind in kinds and selection.namespace == self.question.namespace

    def _without_repeats(self, findings: list[Finding]) -> list[Finding]:
        """Keeps the first of equal findings of the Services of one Pod."""
        if self.question.kind != "pod":
            return findings
        first_by_text: dict[tuple[str, str], Finding] = {}
        for finding in findings:
            first_by_text.setdefault((finding.code, finding.sentence), finding)
        return list(first_by_text.values())

    # Cases and their reads

    def _cases(self) -> Iterable[ExplainCase]:
        return self._final_cases if self._final_cases is not None else self._new_cases()

    def _new_cases(self) -> Iterator[ExplainCase]:
        question, facts = self.question, self.facts
        match question.kind:
            case "service":
                yield ServiceCase(facts, question, question.namespace, question.name)
            case "everything":
                named = {
                    (item.metadata.namespace, item.metadata.name)
                    for item in facts.of(SERVICES, question.namespace)
                }
                named.update(backends_of(facts.of(INGRESSES, question.namespace)))
                yield from (
                    ServiceCase(facts, question, namespace, name)
                    for namespace, name in sorted(named)
                )
            case "pod":
                pod_case = PodCase(facts, question, question.namespace, question.name)
                yield pod_case
                for service in pod_case.services:
                    yield ServiceCase(
                        facts, question, question.namespace, service.metadata.name, pod_case.pod
                    )
            case "node":
                yield NodeCase(facts, question, "", question.name)
            case "zone":
                yield ZoneCase(facts, question, "", question.name)

    @property
    def _is_of_one(self) -> bool:
        return self.question.kind != "everything"

    def _first_reads(self) -> Iterator[Selection]:
        """Yields the reads that a case needs to exist."""
        question = self.question
        if question.kind == "everything":
            yield SERVICES.in_namespace(question.namespace)
        if question.kind == "pod":
            yield PODS.named(question.namespace, question.name)
            yield SERVICES.in_namespace(question.namespace)

    def _reads(self) -> Iterator[Selection]:
        question = self.question
        yield from self._first_reads()
        if question.kind == "everything":
            yield from _lists_of(question.namespace)
        if question.is_of_cluster:
            yield from _PARTS
            return  # these contain the reads of every link
        if question.client is not None and question.client.kind == "pod":
            yield PODS.named(question.client.namespace, question.client.name)
        for case in self._cases():
            for link in CHAIN:
                for selection in link.part(case).reads(case):
                    if self._refusal(selection) is None:
                        yield selection

    def _refusal(self, selection: Selection) -> Unread | None:
        """Returns the refusal of *selection*. If ``lint`` was refused a whole list, it requests no
        part of it: that would be a list for each Service.
        """
        refused = self.facts.refusals
        if self.question.kind != "everything" or selection in refused:
            return refused.get(selection)
        if self.facts.was_read(selection):
            return None
        namespaces = (selection.namespace, "")
        return next(
            (
                unread
                for other, unread in refused.items()
                if other.resource is selection.resource and other.namespace in namespaces
            ),
            None,
        )

    def _run_checks(self) -> Iterator[tuple[Link, Finding]]:
        for case in self._cases():
            results = [
                (link, finding)
                for link in CHAIN
                for check in link.part(case).checks
                for finding in check(case)
            ]
            yield from results
            if isinstance(case, ServiceCase) and not any(_explains(each) for _, each in results):
                yield from ((LAST_RESORT, finding) for finding in nothing_ready(case))

    def _checked_links(self) -> Iterator[str]:
        """Names of the links that have a check for the question, and objects to check."""
        is_silent: dict[str, bool] = {}
        for case in self._cases():
            for link in CHAIN:
                part = link.part(case)
                if part.checks:
                    is_silent[link.name] = is_silent.get(link.name, False) or part.is_silent(case)
        return (link.name for link in CHAIN if is_silent.get(link.name) is False)

    def _rank(self, finding: Finding) -> tuple[Any, ...]:
        """Sorts findings about the Pod of the question before those about its Services."""
        severity, *others = rank(finding)
        return severity, self.question.kind == "pod" and finding.subject.kind != "Pod", *others

    def _blind_links(self) -> dict[str, str]:
        """Returns the links with a refused read, and the reason."""
        blind: dict[str, str] = {}
        for case in self._cases() if self.facts.refusals else ():
            for link in CHAIN:
                for selection in link.part(case).reads(case):
                    unread = self._refusal(selection)
                    if unread is not None:
                        blind.setdefault(link.name, str(unread))
        return blind

    # Writers

    def _evidence_reads(self) -> Iterator[Selection]:
        return (_named(name) for name in self._evidence_names())

    def _evidence_names(self) -> Iterator[ObjectName]:
        assert self._findings is not None, "pending_reads() still has reads"
        names = dict.fromkeys(
            entry.subject
            for finding in sorted((finding for _, finding in self._findings), key=self._rank)[
                :WITH_WRITERS_MAX
            ]
            for entry in finding.evidence
        )
        yield from (name for name in names if name.plural in _PROJECTIONS)

    def _was_refused(self, selection: Selection) -> bool:
        """Returns True if another read of its resource, in its namespace or in all, was refused."""
        return any(
            unread.selection.resource is selection.resource
            and unread.selection.namespace == selection.namespace
            for unread in self.facts.unread
        )

    def _with_writers(self, finding: Finding) -> Finding:
        evidence = tuple(self._with_writer(entry) for entry in finding.evidence)
        return (
            finding
            if evidence == finding.evidence
            else msgspec.structs.replace(finding, evidence=evidence)
        )

    def _with_writer(self, entry: Evidence) -> Evidence:
        # The last writer of an absent field is unknown: its removal leaves no trace.
        if entry.writer or entry.value == "(none)" or entry.subject.plural not in _PROJECTIONS:
            return entry
        write = last_write(self._managers.get(_named(entry.subject), ()), entry.field)
        if write is None:
            return entry
        write = with_user(write, self._noted.get(entry.subject, ()))
        return msgspec.structs.replace(entry, writer=write.manager, written=write.time)


#: the reason of a read that the reader has no right to
FORBIDDEN: Final = "no right to"


#: resources with many objects of which checks read few
_READ_IN_PART: Final = (CONFIG_MAPS, EVENTS, LEASES)
#: ... and the parts of ``lint`` of a whole cluster
_PARTS: Final = (
    CONFIG_MAPS.named(names.SYSTEM, names.COREFILE),
    CONFIG_MAPS.named(zones.SYSTEM, zones.CILIUM_CONFIG),
    LEASES.in_namespace(names.SYSTEM),
    LEASES.in_namespace(LEASES_OF_NODES),
    VIEWS,
)


def _lists_of(namespace: str) -> Iterator[Selection]:
    """Yields the lists of ``lint`` before its links read objects by name; "": all namespaces."""
    for readable in READABLES:
        if readable not in _READ_IN_PART:
            yield readable.in_namespace(namespace)
    yield warnings_in(namespace)


def _explains(finding: Finding) -> bool:
    """Returns True if *finding* can be the reason why no endpoint is ready."""
    weighs = finding.severity != "note" or finding.too_young is not None
    return weighs and finding.code.startswith(_REASONS)


def _is_lookup(selection: Selection) -> bool:
    is_of_pods = selection.resource is PODS.resource and not selection.namespace
    return is_of_pods and bool(selection.field_selector)


def _named(name: ObjectName) -> Selection:
    return _PROJECTIONS[name.plural].named(name.namespace, name.name)
