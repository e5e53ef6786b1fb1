"""The names that our code defines, and the references to them in docstrings, comments and
documents.

A reference is an identifier in double backquotes, or identifiers with dots between them; spans with
other characters (commands, values, paths, placeholders in capitals) are none. It resolves if

* it is a package, a module or a member of one, from ``sliceplane`` or from any package below it:
  where its first part is a package of ``sliceplane``, or its last part is a class or a constant,
  nothing else counts;
* its first part is a class of ours that has or inherits the member;
* its first part is a module that our code imports from elsewhere;
* every part of it is a word of the code or its data: an argument, an attribute, a field of
  Kubernetes, a label.

The docstring of a package lists its modules: there a lower-case word is a module, a member, or a
text of the package.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sliceplane"
REFERENCE = re.compile(r"``(?P<name>[A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?``")
DATA = {".json", ".toml", ".txt", ".js", ".html"}
#: names of others that no code of ours has
FOREIGN = {
    "Kubernetes": "Covers EqualRevision GuaranteedUpdate ParseIPSloppy getPatch "
    "metav1.LabelSelector metav1.MicroTime "
    "metav1.Time mvccpb openapi.v2.Document openapi.v3.Document openapi3 core.PodList "
    "core.PodTemplateSpec "
    "runtime.Unknown serviceport.go topologycache topologycache.SetNodes",
    "Go": "RFC3339Nano net.SplitHostPort rate.Limiter",
    "Python": "RotatingFileHandler conftest.py",
    "Linux": "DELSET DELSETELEM NEWSET NEWSETELEM NFTA_DATA_VALUE NFTA_DATA_VERDICT "
    "PR_SET_PDEATHSIG close_notify "
    "destroy ifaddrmsg.ifa_scope jq nohup",
    "Envoy": "BoolValue ConfigSource DeltaDiscoveryRequest DeltaDiscoveryResponse "
    "DiscoveryRequest DiscoveryResponse "
    "HttpProtocolOptions.ExplicitHttpConfig LoadBalancingPolicy.Policy UInt32Value xds_protocol",
    "placeholders": "LEVEL ns0 agent.yaml",
}

_TRIPLE_QUOTED = re.compile(r'"""(?:[^\\]|\\.)*?"""', re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#(?![\w\"']).*$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_TEXT = re.compile(r'["\'](\w+)["\']')
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
_OWN = re.compile(r"\bself\.(\w+)")


class Code:
    """The names that the modules of a package define and use."""

    def __init__(self, texts: dict[str, str], data: str = "") -> None:
        """*texts* by dotted path below the package; a package has its own without ``__init__``."""
        self.texts = texts
        self._data = data
        self._members: dict[str, set[str]] = {}

    @cached_property
    def words(self) -> frozenset[str]:
        """The words outside comments and docstrings, and the parts of the modules' paths."""
        code = (_COMMENT.sub("", _TRIPLE_QUOTED.sub("", text)) for text in self.texts.values())
        words = {word for text in (*code, self._data) for word in _WORD.findall(text)}
        return frozenset(words.union(*(path.split(".") for path in self.texts)))

    @cached_property
    def foreign(self) -> frozenset[str]:
        return frozenset(word for text in self.texts.values() for word in _IMPORT.findall(text)) - {
            "sliceplane"
        }

    @cached_property
    def packages(self) -> frozenset[str]:
        return frozenset(path.rpartition(".")[0] for path in self.texts)

    @cached_property
    def _by_suffix(self) -> dict[str, list[str]]:
        """The modules by each end of their paths."""
        found: dict[str, list[str]] = {}
        for path in self.texts:
            parts = path.split(".")
            for begin in range(len(parts)):
                found.setdefault(".".join(parts[begin:]), []).append(path)
        return found

    @cached_property
    def _modules_by_class(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path, text in self.texts.items():
            for name in _CLASS.findall(text):
                found.setdefault(name, []).append(path)
        return found

    def members(self, module: str) -> set[str]:
        """``name`` and ``Class.member`` of a module; a member is inherited, too, and may be made by
        any method.
        """
        if module not in self._members:
            names = self._members[module] = set()
            for node in ast.parse(self.texts[module]).body:
                names.update(_defined(node, self.texts[module]))
                if isinstance(node, ast.ClassDef):
                    names.update(f"{node.name}.{member}" for member in self._inherited(node))
        return self._members[module]

    def _inherited(self, node: ast.ClassDef) -> Iterator[str]:
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            for module in self._modules_by_class.get(name, ()):
                yield from self.members_of_class(module, name)

    def members_of_class(self, module: str, name: str) -> set[str]:
        return {
            member.removeprefix(f"{name}.")
            for member in self.members(module)
            if member.startswith(f"{name}.")
        }

    def resolves(self, name: str) -> bool:
        name = name.removeprefix("sliceplane.")
        if name in names_of_others():
            return True
        first, *rest = name.split(".")
        if not rest:
            return first in self.words or first in self.foreign
        if self._is_in_module(name) or (ROOT / f"{name.replace('.', '/')}.py").is_file():
            return True
        if first in self._modules_by_class:
            inside = any(
                f"{first}.{rest[0]}" in self.members(module)
                for module in self._modules_by_class[first]
            )
            return inside and self.words.issuperset(rest[1:])
        if first in self.foreign or first.isupper() or name.endswith(".k8s.io"):
            return True
        if first in self.texts or rest[-1][0].isupper():
            return False
        return self.words.issuperset((first, *rest))

    def is_of_package(self, package: str, name: str) -> bool:
        """Returns True if *name*, a lower-case word, is a part of *package* that its docstring may
        name.
        """
        inside = [path for path in self.texts if f"{path}.".startswith(f"{package}.".lstrip("."))]
        return (
            name in self.texts
            or name in names_of_others()
            or f"{package}.{name}".lstrip(".") in self.texts
            or name in self.foreign
            or keyword.iskeyword(name)
            or _is_there(SOURCE / package.replace(".", "/") / name)
            or any(name in _TEXT.findall(self.texts[path]) for path in inside)
            or any(
                member.rpartition(".")[2] == name
                for path in inside
                for member in self.members(path)
            )
        )

    def _is_in_module(self, name: str) -> bool:
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            for module in self._by_suffix.get(".".join(parts[:length]), ()):
                if length == len(parts) or ".".join(parts[length:]) in self.members(module):
                    return True
        return False


def _defined(node: ast.stmt, text: str, prefix: str = "") -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield prefix + name
        case ast.ClassDef(name=name, body=body):
            yield prefix + name
            for inner in body:
                yield from _defined(inner, text, f"{prefix}{name}.")
            segment = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
            yield from (f"{prefix}{name}.{member}" for member in _OWN.findall(segment))
        case ast.Assign(targets=targets):
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield prefix + name
        case ast.ImportFrom(names=aliases) if not prefix:
            yield from (alias.asname or alias.name for alias in aliases)
        case ast.If(body=body, orelse=other):
            for inner in (*body, *other):
                yield from _defined(inner, text, prefix)


@cache
def names_of_others() -> frozenset[str]:
    return frozenset(" ".join(FOREIGN.values()).split())


def dangling(code: Code, path: str) -> list[str]:
    """The references in the module at *path* that do not resolve."""
    text = code.texts[path]
    missing = [
        name for match in REFERENCE.finditer(text) if not code.resolves(name := match["name"])
    ]
    if path in code.packages:
        plain = [
            name
            for match in REFERENCE.finditer(ast.get_docstring(ast.parse(text)) or "")
            if (name := match["name"]).islower() and "." not in name
        ]
        missing += [
            name for name in plain if name not in missing and not code.is_of_package(path, name)
        ]
    return missing


def _is_there(path: Path) -> bool:
    """Returns False for a folder of which only compiled files are left."""
    return path.is_file() or any(child.name != "__pycache__" for child in path.glob("*"))


@cache
def sliceplane() -> Code:
    texts = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        texts[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(
            encoding="utf-8"
        )
    data = "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*"))
        if path.suffix in DATA
    )
    return Code(texts, data)
