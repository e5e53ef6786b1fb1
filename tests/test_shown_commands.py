"""Every command that a document shows can be typed: programs, subcommands, options, kinds, targets
and files exist.

Guides that ``tools/guides.py`` names are run as well (``tests/kernel/test_guides.py``); here each
command of every fenced block is parsed, whatever it needs to run.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner
from tools.guides import steps

from sliceplane.api.scheme import SERVED
from sliceplane.cli.main import main

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    # docs/cli.md shows mistakes, too, and is made from real runs
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "cli.md"),
    *sorted((ROOT / "docs" / "findings").glob("*.md")),
]
#: a block without a language is a block of commands if it begins with one of these
_BEGINS: Final = (
    "sliceplane",
    "make",
    "kubectl",
    "pip",
    "python3",
    "python",
    "curl",
    "helm",
    "docker",
    "skopeo",
)
_BLOCK: Final = re.compile(
    r"^ *```(?P<language>[a-z]*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE
)
#: a command of ours in running text, with at least one word behind its name
_INLINE: Final = re.compile(r"(?<!`)`(?P<command>(?:sliceplane|make|kubectl) [a-z][^`\n]*)`(?!`)")
_HERE: Final = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?^\s*\1$", re.DOTALL | re.MULTILINE)
#: "$(NAME)" is a variable that a kubelet fills in
_INSIDE: Final = re.compile(r"\$\((?![A-Z_]+\))((?:[^()]|\([^()]*\))*)\)")
_VARIABLE: Final = re.compile(r"\$\([A-Z_]+\)")
#: also of a block in a list, and of a superuser
_PROMPT: Final = re.compile(r"^ *(?:\$ |# (?=sliceplane |apt-get ))", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=")
_BEFORE: Final = ("sudo", "until", "while", "do", "if", "then", "else", "!", "{", "time", "exec")
_SEPARATORS: Final = re.compile(r"[|&;()]+")
#: programs of others, whose options are not ours to know
_OTHERS = """[ apt-get cat chmod chown cp curl dig docker done echo envoy etcd etcdctl export fi for git grep haproxy
head ip iptables jobs jq kill mkdir nft nslookup openssl printf resolvectl rm scp sed seq skopeo sleep sort tail tar
tee uniq wait xargs }"""
PROGRAMS: Final = frozenset(_OTHERS.split())
_FILE: Final = re.compile(
    r"^(?:\./)?(?:demo|deploy|docs|examples|tools|tests|src|benchmarks)/[\w./*-]+$"
)

_VERBS = """annotate api-resources api-versions apply attach auth autoscale config cordon cp create delete describe diff
drain edit exec explain expose get label logs patch port-forward replace rollout scale set taint top uncordon version
wait"""
KUBECTL: Final = frozenset(_VERBS.split())
_OF_KINDS: Final = (
    "annotate",
    "delete",
    "describe",
    "edit",
    "explain",
    "get",
    "label",
    "patch",
    "scale",
    "wait",
)
_KINDS_TO_CREATE = """clusterrole clusterrolebinding configmap deployment namespace role rolebinding secret service
serviceaccount token"""
_CREATED: Final = frozenset(_KINDS_TO_CREATE.split())
#: options of kubectl whose value is a word of its own
_WITH_VALUE = """-n --namespace -l --selector -o --output -f --filename -p --patch -c --container --type --as --user
--kubeconfig --context --server --field-selector --field-manager --raw --for --timeout --verb --resource"""
_VALUED: Final = frozenset(_WITH_VALUE.split())


def shown(text: str) -> Iterator[str]:
    """The commands of all fenced blocks, in order, a here-document included; and ours in running
    text.
    """
    for block in _BLOCK.finditer(text):
        body = _PROMPT.sub("$ ", block["text"])
        if block["language"] == "console":
            yield from (step.command for step in steps(body))
        elif block["language"] in ("", "bash", "sh") and body.split(maxsplit=1)[0] in _BEGINS:
            yield from re.sub(r"\\?\n {2,}", " ", body).splitlines()
    for inline in _INLINE.finditer(_BLOCK.sub("", text)):
        yield inline["command"]


def simple(command: str) -> Iterator[list[str]]:
    """The words of each program that a shell would start for *command*."""
    text = _VARIABLE.sub("VALUE", _HERE.sub("", command)).replace("\\\n", " ").replace("\n", " ; ")
    while inside := _INSIDE.search(text):
        yield from simple(inside[1])
        text = f"{text[: inside.start()]}SUBSTITUTED{text[inside.end() :]}"
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for token in lexer:
        if _SEPARATORS.fullmatch(token):
            if words:
                yield words
            words = []
        elif re.fullmatch(r"[<>]+&?|&>", token):
            is_target = True
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif is_target:
            is_target = False
        else:
            words.append(token)
    if words:
        yield words


def problem_of(words: list[str]) -> str:
    """Returns the reason why *words* cannot be typed; "" if they can."""
    while words and (words[0] in _BEFORE or _ASSIGNED.match(words[0])):
        words = words[1:]
    if not words:
        return ""
    name = words[0].removeprefix(".venv/bin/").rpartition("/opt/sliceplane/bin/")[2]
    check = _CHECKS.get(name)
    if check is None and name not in PROGRAMS:
        return f"there is no program {name}"
    named = [word for word in words[1:] if _FILE.match(word)]
    if name == "kubectl":  # deploy/web is a Deployment
        named = [word for word in named if "." in word]
    missing = [word for word in named if not list(ROOT.glob(word.removeprefix("./")))]
    if missing:
        return f"there is no file {missing[0]}"
    return check(words[1:]) if check is not None else ""


def _sliceplane(arguments: list[str]) -> str:
    """Placeholders (NAME) parse as values, and an option of running text may lack its own; what
    follows "--" is another program's.
    """
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    result = CliRunner().invoke(
        main, [*(word for word in ours if word not in ("...", "[...]")), "--help"]
    )
    is_known = not result.exit_code or "'--help' is not" in result.output
    return "" if is_known else result.output.strip()


@cache
def targets() -> frozenset[str]:
    return frozenset(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


def _make(arguments: list[str]) -> str:
    asked = [word for word in arguments if not _ASSIGNED.match(word) and not word.startswith("-")]
    unknown = [target for name in asked for target in name.split("|") if target not in targets()]
    return f"make has no target {unknown[0]}" if unknown else ""


@cache
def kinds() -> frozenset[str]:
    names = {name for row in SERVED for name in (row.plural, row.kind.lower(), *row.short_names)}
    return frozenset({"all", *names})


def _plain(arguments: list[str]) -> list[str]:
    """Words that are neither options nor their values."""
    plain: list[str] = []
    is_value = False
    for word in arguments:
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            is_value = word in _VALUED
        else:
            plain.append(word)
    return plain


def _kubectl(arguments: list[str]) -> str:
    words = _plain(arguments)
    if not words or words[0] == "sliceplane":
        return _sliceplane(arguments[1:]) if words else ""
    verb, *rest = words
    if verb not in KUBECTL:
        return f"kubectl has no command {verb}"
    if verb == "create" and rest and rest[0] not in _CREATED:
        return f"kubectl cannot create {rest[0]}"
    reads_file = any(word.startswith(("-f", "--filename")) for word in arguments)
    if verb not in _OF_KINDS or not rest or reads_file:
        return ""
    if rest[0].isupper() or rest[0] == "...":
        return ""
    first = rest[0].partition("/")[0].partition(".")[0]
    unknown = [name for name in first.split(",") if name not in kinds()]
    return f"the server does not serve {unknown[0]}" if unknown else ""


def _python(arguments: list[str]) -> str:
    if arguments[:1] != ["-m"]:
        return ""
    name = arguments[1]
    if name == "pip":
        return _pip(arguments[2:])
    is_there = importlib.util.find_spec(name) is not None
    return "" if is_there else f"there is no module {name}"


def _pip(arguments: list[str]) -> str:
    """Nothing is published, so that what is installed is a folder or a wheel, or what an installed
    one lacks.
    """
    names = [word for word in arguments[1:] if re.match(r"sliceplane(?![\w/.-]*\.whl)", word)]
    fetched = [name for name in names if "[" not in name or "--upgrade" in arguments]
    return f"{fetched[0]} is at no index" if fetched else ""


@cache
def values() -> dict[str, object]:
    path = ROOT / "deploy" / "helm" / "sliceplane" / "values.yaml"
    loaded: dict[str, object] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def _helm(arguments: list[str]) -> str:
    for before, word in itertools.pairwise(arguments):
        if before != "--set":
            continue
        value: object = values()
        for name in word.partition("=")[0].split("."):
            if not isinstance(value, dict) or name not in value:
                return f"the chart has no value {word}"
            value = value[name]
    return ""


def _systemctl(arguments: list[str]) -> str:
    units = [word for word in arguments[1:] if not word.startswith("-")]
    missing = [
        unit for unit in units if not (ROOT / "deploy" / "systemd" / f"{unit}.service").exists()
    ]
    return f"there is no unit {missing[0]}" if missing else ""


_CHECKS: Final[dict[str, Callable[[list[str]], str]]] = {
    "sliceplane": _sliceplane,
    "make": _make,
    "kubectl": _kubectl,
    "python": _python,
    "python3": _python,
    "pip": _pip,
    "helm": _helm,
    "systemctl": _systemctl,
}


def problems(text: str) -> list[str]:
    return [
        f"{command.splitlines()[0]}: {problem}"
        for command in shown(text)
        for words in simple(command)
        if (problem := problem_of(words))
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_shown_can_be_typed(path: Path) -> None:
    found = problems(path.read_text(encoding="utf-8"))
    assert not found, "\n".join([str(path.relative_to(ROOT)), *found])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sliceplane trace --form pod/a", "No such option"),
        ("A=1 sliceplane up --emulate >log 2>&1 &", ""),
        ("until sliceplane nodes | grep -q a; do sleep 1; done", "No such command 'nodes'"),
        ('test "$(sliceplane agent lists | wc -l)" = 2', "No such command 'lists'"),
        ("make everything", "no target everything"),
        ("kubectl get gateways -n shop", "does not serve gateways"),
        ("kubectl -n shop get pods,crds", "does not serve crds"),
        ("kubectl inspect pods", "no command inspect"),
        ("kubectl apply -f demo/manifests.yaml", "no file demo/manifests.yaml"),
        ("helm install a deploy/helm/sliceplane --set xds.enable=true", "no value xds.enable"),
        ("pip install sliceplane", "at no index"),
        ("pip install --upgrade 'sliceplane[etcd]'", "at no index"),
        ("pip install '.[server]' && sliceplane version", ""),
        ("python -m benchmark agents", "no module benchmark"),
        ("systemctl restart slice-plane", "no unit slice-plane"),
        ("sliceplan up", "no program sliceplan"),
    ],
)
def test_a_line_that_cannot_be_typed_is_found(line: str, why: str) -> None:
    found = problems(f"```console\n$ {line}\n```\n")
    assert found if why else not found
    assert not why or why in found[0]


def test_commands_in_running_text_are_read() -> None:
    assert problems("Run `sliceplane drft` or `make docs`.") == [
        "sliceplane drft: " + problem_of(["sliceplane", "drft"])
    ]
