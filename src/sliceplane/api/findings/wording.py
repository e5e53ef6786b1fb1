"""Words that sentences of findings share: how long ago, how many, which name was meant, a patch as
a command.

Numbers and what is said of them agree: ``count``, ``part`` and ``some`` put noun and verb as the
number wants them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sliceplane.api.findings.finding import ObjectName
from sliceplane.kit.times import parse_time

#: names that a sentence has at most
NAMES_MAX: Final = 3
#: ... where it lists what there is to choose from
CHOICES_MAX: Final = 8
#: characters of a message that is quoted
MESSAGE_MAX: Final = 160
_VERBS: Final = {"is": "are", "has": "have", "does": "do", "does not": "do not", "was": "were"}
_HISSING: Final = ("s", "x", "ch", "sh")
#: of 1: how alike a name must be to be the one that was meant (one wrong letter of three, two of
#: eight)
_ALIKE_MIN: Final = 0.66


def some(names: Sequence[str], most: int = NAMES_MAX, *, verb_of_one: str = "") -> str:
    """``a, b, c and 4 more``; ``a has``, ``a, b have``"""
    listed = ", ".join(names[:most])
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return _joined(f"{listed}{more}", verb(len(names), verb_of_one))


def count(number: int, noun: str, verb_of_one: str = "") -> str:
    """``1 Pod has``, ``3 Pods have``, ``no Pod has``; without *verb_of_one* ``3 Pods``."""
    if number == 0:
        return _joined(f"no {noun}", verb_of_one)
    return _joined(
        f"1 {noun}" if number == 1 else f"{number:,} {plural(noun)}", verb(number, verb_of_one)
    )


def part(number: int, total: int, noun: str, verb_of_one: str = "") -> str:
    """``1 of 3 Pods has``, ``2 of 3 Pods have``, ``1 of 1 Pod has``, ``0 of 0 Pods have``"""
    return _joined(
        f"{number:,} of {total:,} {noun if total == 1 else plural(noun)}", verb(number, verb_of_one)
    )


def verb(number: int, of_one: str) -> str:
    """Returns the verb for *number* subjects, where one does *of_one*: ``verb(2, "mirrors")`` is
    ``mirror``; "" stays so.
    """
    return of_one if number == 1 or not of_one else _VERBS.get(of_one) or _without_s(of_one)


def plural(noun: str) -> str:
    """Returns the plural of the last word: ``ready endpoints``, ``addresses``, ``policies``."""
    if noun.endswith(_HISSING):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"


def _without_s(word: str) -> str:
    """Returns "reach" for "reaches", "carry" for "carries", "tell" for "tells"."""
    stem = word.removesuffix("s")
    if stem.endswith("ie"):
        return f"{stem[:-2]}y"
    return stem[:-1] if stem.endswith("e") and stem[:-1].endswith(("ss", *_HISSING[1:])) else stem


def _joined(subject: str, verb_text: str) -> str:
    return f"{subject} {verb_text}" if verb_text else subject


def clipped(text: str, most: int = MESSAGE_MAX) -> str:
    """Returns the beginning of a message, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3].rstrip() + "..."


def pairs_text(labels: Mapping[str, str]) -> str:
    """``app=web,tier=front``, as a label selector has it."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def lasting(seconds: float) -> str:
    """``8 s``, ``14 min``, ``3 h``, ``9 d``"""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def since(text: str | None, now: float) -> float | None:
    """Seconds since the RFC 3339 time *text*; ``None`` where it is none."""
    try:
        return now - parse_time(text) if text else None
    except ValueError:
        return None


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of *names* that are like *name* and not it, the likest first."""
    ranked = sorted(
        (-difflib.SequenceMatcher(None, name, other).ratio(), other)
        for other in set(names) - {name}
        # By their lengths alone most of many are too different, and a ratio costs 50 us.
        if 2 * min(len(name), len(other)) >= _ALIKE_MIN * (len(name) + len(other))
    )
    return tuple(other for likeness, other in ranked if -likeness >= _ALIKE_MIN)[:NAMES_MAX]


def misnamed_proxy(name: str, nodes: Sequence[str]) -> tuple[str, str]:
    """Returns a clause that says which of *nodes* a proxy that is called *name* means, and the flag
    that mends it.
    """
    meant = [node for node in nodes if name.startswith(f"{node}.") or node.startswith(f"{name}.")]
    meant = meant or list(nearest(name, nodes))
    if meant:
        return f"the Node is {meant[0]}", f"--hostname-override={meant[0]}"
    return (
        "there is no such Node",
        f"--hostname-override=NODE, one of {some(nodes)}, or with --register-node",
    )


def no_such(kind: str, key: str, existing: Iterable[str]) -> str:
    """``there is no Service shop/kart; is shop/cart meant?``: suggests the same name in another
    namespace, or a similar name; if there is neither, lists the choices. *existing*: keys, with a
    namespace if *key* has one.
    """
    space, _, name = key.rpartition("/")
    apart = [other.rpartition("/") for other in sorted(existing)]
    here = [other for where, _, other in apart if where == space]
    meant = [f"{where}/{other}" for where, _, other in apart if other == name and where != space]
    meant = meant or [f"{space}/{other}" if space else other for other in nearest(name, here)]
    where = f" in {space}" if space else ""
    choice = (
        f"there {verb(len(here), 'is')} {some(here, CHOICES_MAX)}{where}"
        if here
        else f"there is none{where}"
    )
    return f"there is no {kind} {key}; " + (
        f"is {' or '.join(meant[:NAMES_MAX])} meant?" if meant else choice
    )


def grant_command(verb_text: str, resources: Iterable[str]) -> str:
    """Returns the command that creates a role with a right that a reader lacks; an administrator
    binds it. *verb_text*: one verb, or several with commas. *resources*: ``plural.group``, or paths
    of the server. ``sliceplane-reader`` of the chart has the rights of all commands that read.
    """
    names = sorted(resources)
    flag = "--non-resource-url" if names[0].startswith("/") else "--resource"
    suffix = "pages" if flag == "--non-resource-url" else verb_text.replace(",", "-")
    role = f"sliceplane-reader-{suffix}"
    return f"kubectl create clusterrole {role} --verb={verb_text} {flag}={','.join(names)}"


def resources_by_verb(rights: Iterable[str]) -> dict[str, list[str]]:
    """Groups *rights* ("VERB RESOURCE ...") for ``grant_command``; each resource once."""
    grouped: dict[str, list[str]] = {}
    for right in dict.fromkeys(" ".join(right.split(" ")[:2]) for right in rights):
        verb_text, _, resource = right.partition(" ")
        grouped.setdefault(verb_text, []).append(resource)
    return grouped


def explain_command(name: ObjectName) -> str:
    """The command that says more of a Service, a Pod or a Node."""
    where = f"-n {name.namespace} " if name.namespace else ""
    return f"sliceplane explain {name.kind.lower()} {where}{name.name}"


def patch(namespace: str, resource: str, name: str, change: dict[str, Any]) -> str:
    """A command that merges *change*; *namespace* "": cluster scope."""
    where = f"-n {namespace} " if namespace else ""
    text = json.dumps(change, separators=(",", ":"))
    return f"kubectl {where}patch {resource} {name} --type merge -p '{text}'"
