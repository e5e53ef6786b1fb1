"""Resolves the destinations of a new connection from a process on a node, from the output of
``iptables-save -t nat``.

It works like ``kernel_rules`` for nftables: it takes every branch of a random choice, does not
depend on any proxy's names, and an unknown match or target is an error and never skipped. All lists
of ``recent`` count as empty.
"""

from __future__ import annotations

import ipaddress
import shlex
from typing import Final

from sliceplane.lab.conformance.consumers.kernel_rules import UnknownStatement
from sliceplane.lab.conformance.model import Belief

_HOOK: Final = "OUTPUT"
_BUILT_IN: Final = frozenset(("PREROUTING", "INPUT", _HOOK, "POSTROUTING"))
#: options of a rule without a value
_FLAGS: Final = frozenset(("--rcheck", "--reap", "--rsource", "--set"))
#: options that every packet may match, or that only modify others
_ALWAYS: Final = frozenset(
    (
        "-m",
        "--comment",
        "--mode",
        "--probability",
        "--seconds",
        "--reap",
        "--name",
        "--mask",
        "--rsource",
        "--set",
    )
)


def saved_destinations(saved: str, address: str, port: int, source: str) -> Belief | None:
    """Returns every ``ADDRESS:PORT`` to which rules may redirect a TCP connection from *source*,
    the node, to *address* and *port*; ``None``: there are only built-in chains. Raises
    ``UnknownStatement``.
    """
    chains: dict[str, list[list[str]]] = {}
    for line in saved.splitlines():
        if line.startswith(":"):
            chains[line[1:].split()[0]] = []
        elif line.startswith("-A "):
            _, chain, *tokens = shlex.split(line) if '"' in line else line.split()
            chains[chain].append(tokens)
    if chains.keys() <= _BUILT_IN:
        return None
    walk = _Walk(chains, address, port, source)
    walk.chain(_HOOK)
    return frozenset(walk.ends)


class _Walk:
    def __init__(
        self, chains: dict[str, list[list[str]]], address: str, port: int, source: str
    ) -> None:
        self._chains = chains
        self._address = address
        self._port = port
        self._source = source
        self.ends: set[str] = set()

    def chain(self, name: str) -> bool:
        """Returns True if the packet certainly ends in this chain."""
        for tokens in self._chains[name]:
            at = next(
                (number for number, token in enumerate(tokens) if token in ("-j", "-g")),
                len(tokens),
            )
            if not self._matches(tokens[:at]):
                continue
            flow = self._target(tokens[at:])
            if flow != "next" and "--probability" not in tokens:
                return flow == "done"
        return False

    def _matches(self, tokens: list[str]) -> bool:
        """Returns True if the rule may match; a random choice counts as a match."""
        at = 0
        expected = True
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if token == "!":
                expected = False
                continue
            value = ""
            if token not in _FLAGS:
                value = tokens[at]
                at += 1
            if self._matches_word(token, value) is not expected:
                return False
            expected = True
        return True

    def _matches_word(self, token: str, value: str) -> bool:
        match token:
            case "-s" | "-d":
                address = self._source if token == "-s" else self._address
                return ipaddress.ip_address(address) in ipaddress.ip_network(value)
            case "-p":
                return value == "tcp"
            case "--dport":
                return self._port == int(value)
            case "--dst-type":
                return value == "UNICAST"
            case "--src-type":
                return value == "LOCAL"
            case "-i" | "--rcheck":
                return False  # the packet is the first one of a local process
            case "--ctstate":
                return "NEW" in value.split(",")
            case "--mark":
                return int(value.partition("/")[0], 16) == 0
        if token in _ALWAYS:
            return True
        raise UnknownStatement(f"cannot follow the match {token} {value}")

    def _target(self, action: list[str]) -> str:
        """ "next" rule, "return" to the chain that jumped here, or "done"."""
        match action:
            case [] | ["-j", "MARK" | "LOG", *_]:
                return "next"
            case ["-j", "DNAT", "--to-destination", target, *_]:
                self.ends.add(target)
                return "done"
            case ["-j", "ACCEPT" | "DROP" | "REJECT", *_]:
                return "done"
            case ["-j", "RETURN"]:
                return "return"
            case ["-j" | "-g", target] if target in self._chains:
                if self.chain(target):
                    return "done"
                return "next" if action[0] == "-j" else "return"
        raise UnknownStatement(f"cannot follow {' '.join(action)}")
