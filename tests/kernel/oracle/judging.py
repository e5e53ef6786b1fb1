"""Plays a world in the field, and compares every answer with what connections found out.

A Service's port *works* if every connection to it from every client (the node, a Pod elsewhere, a
Pod that may be its own endpoint) is answered by an endpoint that slices have now, ready or still
serving; it *fails* if one is not. ``explain`` says "well"
(exit code 0), "broken" (an error), "warned" (a warning alone) or "cannot tell". "Well" of what
fails, and "broken" of what works, is a fault of ``explain`` unless ``EXCEPTIONS`` has its kind.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tests.kernel.oracle.damage import damaged
from tests.kernel.oracle.field import Field
from tests.kernel.oracle.worlds import (
    HERE,
    SLICE_LABEL,
    Doc,
    PodPlan,
    Question,
    WorldPlan,
    pod_documents,
)

from sliceplane.kit.times import format_time

#: since when the Pods are as they are: the server's clock is slow, so that it is older than all
POD_AGE_S: Final = 7200

#: kinds of disagreement that API objects and rules cannot show, with the reason
EXCEPTIONS: Final = {
    "not listening": "a ready Pod's process does not listen: no object shows it; --probe does",
    "second proxy": "rules of two proxies (N6): which of them packets meet first is chance",
    "lost endpoint": "the rules lack one of several endpoints: what would choose it may fail",
}


@dataclass
class Heard:
    """What one port of a Service was found to do."""

    question: Question
    #: by client
    answers: dict[str, list[str]]
    #: the port's, as "ADDRESS:PORT", if they are ready, or serve while they terminate
    endpoints: frozenset[str]

    @property
    def works(self) -> bool:
        return all(each in self.endpoints for said in self.answers.values() for each in said)

    def __str__(self) -> str:
        return "; ".join(
            f"{client}: " + ", ".join(f"{n} {said}" for said, n in sorted(Counter(all_).items()))
            for client, all_ in self.answers.items()
        )


@dataclass
class Disagreement:
    kind: str
    seed: int
    question: Question
    heard: str
    said: str

    @property
    def is_listed(self) -> bool:
        return self.kind in EXCEPTIONS

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.kind}: {self.question.service}:{self.question.port}\n"
            f"  heard {self.heard}\n  said {self.said}"
        )


@dataclass
class Tally:
    """Results of many worlds."""

    worlds: int = 0
    questions: int = 0
    connections: int = 0
    #: questions that ``trace`` was asked, too
    traces: int = 0
    #: by what was said and what was so
    verdicts: Counter[str] = field(default_factory=Counter)
    #: codes of warnings about what works
    warned: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)
    #: worlds that could not be played
    failed: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[Disagreement]:
        return [each for each in self.disagreements if not each.is_listed]

    def joined(self, other: Tally) -> Tally:
        """Returns the results of both."""
        names = [each.name for each in fields(self)]
        return Tally(*(getattr(self, name) + getattr(other, name) for name in names))

    def line(self) -> str:
        """For the page of long runs."""
        listed = Counter(each.kind for each in self.disagreements if each.is_listed)
        return (
            f"{self.worlds} worlds, {self.questions} questions, {self.connections:,} connections, "
            f"{self.traces} traces, {len(self.faults)} contradictions, {len(self.failed)} not played; listed: "
            + (", ".join(f"{number} {kind}" for kind, number in sorted(listed.items())) or "none")
        )

    def text(self) -> str:
        kinds = Counter(each.kind for each in self.disagreements)
        return "\n".join(
            (
                f"{self.worlds} worlds, {self.questions} questions, {self.connections} connections",
                *(f"  {name}: {number}" for name, number in sorted(self.verdicts.items())),
                f"  warned of what works: {dict(self.warned.most_common())}",
                f"  cannot tell: {dict(self.untold.most_common())}",
                f"  disagreements: {dict(kinds.most_common())}",
            )
        )


async def play(place: Field, world: WorldPlan, tally: Tally) -> None:
    """Makes the world, asks its questions, and takes it away."""
    await place.listen(world.listening())
    if place.is_stopped:
        await place.start_proxy()
    made = await _make(place, world)
    try:
        await place.settled(world.namespace)
        await _away(place, world, made)
        if world.damage != "none":
            world_damage = await damaged(place, world)
            made.notes.append(world_damage)
        await _judge(place, world, made, tally)
    finally:
        await _unmake(place, world, made)
    tally.worlds += 1


@dataclass
class _Made:
    """What is at the server."""

    pods: dict[str, tuple[PodPlan, Doc]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def _make(place: Field, world: WorldPlan) -> _Made:
    made = _Made()
    name = world.namespace
    await place.inside(
        "create", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    stamp = format_time(place.server_time() - POD_AGE_S)
    for plan in world.pods:
        pod, with_status = pod_documents(plan, name, stamp)
        await place.inside("create", pod)
        await place.inside("status", with_status)
        path = f"/api/v1/namespaces/{name}/pods/{plan.name}"
        made.pods[plan.name] = (plan, with_status)
        made.paths.append(path)
        if plan.state in ("terminating", "leaving"):
            await place.inside("ask", "DELETE", path)
    for document in world.documents:
        await _create(place, document, made)
    return made


async def _create(place: Field, document: Doc, made: _Made) -> None:
    from tests.kernel.oracle.inside import path_of

    await place.inside("create", document)
    made.paths.append(
        f"{path_of(document['kind'], document['metadata'])}/{document['metadata']['name']}"
    )


async def _away(place: Field, world: WorldPlan, made: _Made) -> None:
    """The proxy looks away, and things change."""
    match world.proxy:
        case "runs":
            return
        case "stopped":
            place.signal_proxy(signal.SIGSTOP)
        case "dead":
            await place.stop_proxy()
        case "absent":
            await place.stop_proxy()
            await place.clean_kernel()
    for change in world.changes:
        subject = change.document
        match change.verb:
            case "create":
                await _create(place, subject, made)
            case "patch":
                path = f"/api/v1/namespaces/{world.namespace}/services/{subject['name']}"
                await place.inside(
                    "ask", "PATCH", path, subject["patch"], "application/json-patch+json"
                )
            case "status":
                plan, document = made.pods[subject["name"]]
                await place.inside("status", _other_readiness(plan, document))
    await place.settled(world.namespace)


def _other_readiness(plan: PodPlan, document: Doc) -> Doc:
    conditions = document["status"].get("conditions", [])
    return {
        **document,
        "status": {
            **document["status"],
            "conditions": [
                {**each, "status": "False" if each["status"] == "True" else "True"}
                if each["type"] in ("Ready", "ContainersReady")
                else each
                for each in conditions
            ],
            "containerStatuses": [
                {**each, "ready": plan.state not in ("ready", "terminating")}
                for each in document["status"].get("containerStatuses", [])
            ],
        },
    }


async def _unmake(place: Field, world: WorldPlan, made: _Made) -> None:
    for path in made.paths:
        await place.inside("ask", "DELETE", path, {"gracePeriodSeconds": 0})
    await place.inside("ask", "DELETE", f"/api/v1/namespaces/{world.namespace}")
    if world.proxy != "runs" or world.damage != "none":
        await place.stop_proxy()
        await place.clean_kernel()


async def _judge(place: Field, world: WorldPlan, made: _Made, tally: Tally) -> None:
    all_heard: list[Heard] = []
    for question in world.questions:
        await place.forget_flows()
        heard = await _listen_to(place, world, question)
        said = await explained(place, world, question)
        tally.questions += 1
        tally.connections += sum(map(len, heard.answers.values()))
        kind = _disagreement(heard, said)
        if kind:
            # the rules may have changed in between
            await place.settled(world.namespace)
            await place.forget_flows()
            heard = await _listen_to(place, world, question)
            said = await explained(place, world, question)
            kind = await _named(place, world, question, heard, said)
        tally.verdicts[f"{'works' if heard.works else 'fails'}, {said.verdict}"] += 1
        if said.verdict == "warned" and heard.works:
            tally.warned[said.codes[0]] += 1
        if said.verdict == "cannot tell":
            tally.untold[said.why] += 1
        planted = f"(planted: {', '.join(world.faults)}; {', '.join(made.notes)})"
        if kind:
            disagreement = Disagreement(kind, world.seed, question, f"{heard} {planted}", said.text)
            tally.disagreements.append(disagreement)
        if world.proxy == "runs" and world.damage == "none" and not question.headless:
            tally.traces += 1
            wrong = await _traced_otherwise(place, world, heard)
            if wrong:
                disagreement = Disagreement(
                    "trace", world.seed, question, f"{heard} {planted}", wrong
                )
                tally.disagreements.append(disagreement)
        all_heard.append(heard)
    tally.disagreements += await _linted_otherwise(place, world, all_heard)


async def _traced_otherwise(place: Field, world: WorldPlan, heard: Heard) -> str:
    """What ``trace`` says of connections of the node, if they end otherwise; else ""."""
    question = heard.question
    code, out, errors = await place.command(
        *("trace", "-n", world.namespace, "--from", f"node/{HERE}", "-o", "json"),
        *("--to", f"{question.service}:{question.port}"),
    )
    if code == 2:  # it has no such port
        return "" if not heard.endpoints else errors
    answer = json.loads(out)
    listening = world.listening()
    expected = {
        f"{each['address']}:{each['port']}"
        if each["port"] in listening.get(each["address"], ())
        else "refused"
        for each in answer["targets"]
        if answer["verdict"] == "dnat"
    } or {"dropped" if answer["verdict"] == "drop" else "refused"}
    if {*heard.answers["node"]} <= expected:
        return ""
    return f"{answer['verdict']} to {sorted(expected)}: {answer['reason']}"


async def _linted_otherwise(
    place: Field, world: WorldPlan, all_heard: list[Heard]
) -> list[Disagreement]:
    """Errors of ``lint`` about Services of which every port works."""
    _, out, _ = await place.command("lint", "-n", world.namespace, "-o", "json")
    failing = {heard.question.service for heard in all_heard if not heard.works}
    questions = {heard.question.service: heard.question for heard in all_heard}
    return [
        Disagreement("lint", world.seed, questions[name], "works", finding["sentence"])
        for finding in json.loads(out)["findings"]
        if finding["severity"] == "error" and finding["subject"]["kind"] == "Service"
        if finding["code"] != "X1"  # clients of other nodes
        if (name := finding["subject"]["name"]) in questions and name not in failing
    ]


async def _listen_to(place: Field, world: WorldPlan, question: Question) -> Heard:
    service = await place.inside(
        "ask", "GET", f"/api/v1/namespaces/{world.namespace}/services/{question.service}"
    )
    clients = ["node", "client"]
    running = [
        pod.address for pod in world.pods if pod.state in ("ready", "unready") and pod.node == HERE
    ]
    endpoints = await _endpoints(place, service, question)
    own = [each for each in running if any(at.startswith(f"{each}:") for at in endpoints)]
    # slices that are written by hand do not say where an endpoint is
    if running and "selector" in service["spec"]:
        clients.append(random.Random(f"{world.seed} {question}").choice(own or running))
    answers: dict[str, list[str]] = {}
    for client in clients:
        addresses: tuple[str, ...] = (service["spec"]["clusterIP"],)
        if question.headless:
            addresses = await place.addresses(question.service, world.namespace)
        answers[client] = [
            each
            for address in addresses
            for each in await place.heard(client, address, question.port)
        ] or ["no address"]
    return Heard(question, answers, endpoints)


async def _endpoints(place: Field, service: Doc, question: Question) -> frozenset[str]:
    metadata, ports = service["metadata"], service["spec"]["ports"]
    names = {port.get("name", "") for port in ports if port["port"] == question.port}
    return frozenset(
        f"{address}:{question.port if question.headless else port['port']}"
        for item in await place.slices(metadata["namespace"])
        if item["metadata"].get("labels", {}).get(SLICE_LABEL) == metadata["name"]
        for port in ([{"name": ""}] if question.headless else item.get("ports") or ())
        if question.headless or port.get("name", "") in names
        for endpoint in item.get("endpoints") or ()
        if _is_usable(endpoint["conditions"])
        for address in endpoint["addresses"]
    )


def _is_usable(conditions: Doc) -> bool:
    is_leaving = conditions.get("terminating") and conditions.get("serving") is not False
    return bool(conditions.get("ready") is not False or is_leaving)


@dataclass
class Said:
    """What ``explain`` answered."""

    code: int
    document: dict[str, Any]
    errors: str = ""

    @property
    def verdict(self) -> str:
        findings = self.document.get("findings", ())
        if self.code == 0:
            return "well"
        if self.code != 1 or not findings:
            return "cannot tell"
        return "broken" if findings[0]["severity"] == "error" else "warned"

    @property
    def about_loops(self) -> str:
        """The sentence about endpoints that do not reach themselves."""
        sentences = (str(each["sentence"]) for each in self.document.get("findings", ()))
        return next((text for text in sentences if "sends to itself" in text), "")

    @property
    def codes(self) -> list[str]:
        return [each["code"] for each in self.document.get("findings", ())]

    @property
    def why(self) -> str:
        missing = self.document.get("notLookedAt") or [self.errors or "too young"]
        return str(missing[-1])

    @property
    def text(self) -> str:
        sentences = [
            f"{each['code']} ({each['severity']}) {each['sentence']}"
            for each in self.document.get("findings", ())
        ]
        return f"{self.verdict}: {'; '.join(sentences)} {self.document.get('notLookedAt')}"


async def explained(
    place: Field, world: WorldPlan, question: Question, *more: str, kernel: bool = True
) -> Said:
    code, out, errors = await place.command(
        *("explain", "service", question.service, "-n", world.namespace, "-o", "json"),
        *("--port", str(question.port), "--protocol", "tcp", "--from", f"node/{HERE}"),
        *(("--kernel",) if kernel else ()),
        *more,
    )
    return Said(code, json.loads(out) if out.startswith("{") else {}, errors)


def _disagreement(heard: Heard, said: Said) -> str:
    if said.verdict == "well" and not heard.works:
        return "well, and fails"
    if said.verdict == "broken" and heard.works:
        return "broken, and works"
    for client, answers in heard.answers.items():
        own = f"{client}:"
        if any(each.startswith(own) for each in answers) and own in said.about_loops:
            return "no way to itself, and it works"
    return ""


async def _named(
    place: Field, world: WorldPlan, question: Question, heard: Heard, said: Said
) -> str:
    """The kind of a disagreement; "": there is none any more."""
    kind = _disagreement(heard, said)
    if kind == "broken, and works" and said.codes[0] == "N5" and "does not lead" in said.text:
        return "lost endpoint"
    if kind == "broken, and works" and said.codes[0] == "N6":
        return "second proxy"
    if kind == "well, and fails":
        probed = await explained(place, world, question, "--probe")
        if "refused" in str(heard) and {"T1", "T6"} & {*probed.codes}:
            return "not listening"
    return kind
