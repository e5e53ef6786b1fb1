"""A kernel with nftables in it, for tests: the commands of ``objects`` with the semantics that the
real one has.

A transaction is taken whole or not at all. The errors are those that nft reports: a missing table,
chain, container or element (ENOENT), an object that exists otherwise (EEXIST), one that is still in
use (EBUSY), keys or values of the wrong type (EINVAL), a command that nft's grammar does not have
(EINVAL).

It is deliberately as strict as the strictest kernel that we support: before 6.2, a chain or map
whose last reference goes in the same transaction still counts as in use. What passes here passes
there.
"""

from __future__ import annotations

import copy
import ipaddress
from typing import Literal

from sliceplane.kit.ip import networks
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    ChainContents,
    Command,
    ContainerContents,
    DeleteChain,
    DeleteContainer,
    DeleteElements,
    DeleteTable,
    DnatTarget,
    FlushChain,
    FlushContainer,
    Key,
    NftContainer,
    NftVerdict,
    RemainingTime,
    TableContents,
    TableRef,
    Transaction,
    Value,
)
from sliceplane.node.nft.statements import (
    AddressIn,
    Balance,
    Dnat,
    DnatBucket,
    DnatMap,
    Field,
    Goto,
    GotoOneOf,
    InSet,
    Jump,
    NftFamily,
    Remember,
    Statement,
    Vmap,
)

#: of the fields of packets, as keys have them
_TYPES: dict[Field, str] = {"saddr": "addr", "daddr": "addr", "proto": "proto", "dport": "port"}

Errno = Literal["ENOENT", "EEXIST", "EBUSY", "EINVAL"]
NAME_MAX = 255


class FakeError(Exception):
    """The transaction was refused; nothing of it was done."""

    def __init__(self, errno: Errno, command: Command, why: str) -> None:
        super().__init__(f"{errno}: {why} ({command})")
        self.errno = errno
        self.command = command


def _chain_users(table: TableContents, name: str) -> list[str]:
    """Who leads to chain *name*."""
    jumps = [
        chain
        for chain, held in table.chains.items()
        for rule in held.rules
        if any(name in chains_of(part) for part in rule.statements)
    ]
    maps = [
        held.definition.name
        for held in table.containers.values()
        if any(
            isinstance(value, NftVerdict) and value.chain == name
            for value in held.elements.values()
        )
    ]
    return jumps + maps


def _container_users(table: TableContents, name: str) -> list[str]:
    """The chains whose rules look something up in *name*."""
    return [
        chain
        for chain, held in table.chains.items()
        for rule in held.rules
        if any(container_of(part) == name for part in rule.statements)
    ]


class FakeKernel:
    """All tables of one network namespace.  ``tables`` may be read, and damaged, by tests."""

    def __init__(self) -> None:
        self.tables: dict[TableRef, TableContents] = {}
        self.transactions = 0

    def run(self, transaction: Transaction) -> None:
        """Takes *transaction*; raises ``FakeError`` and changes nothing if a command cannot be
        done.
        """
        attempt = _Attempt(copy.deepcopy(self.tables), self.tables, transaction.table)
        for command in transaction.commands:
            attempt.perform(command)
        self.tables = attempt.tables
        self.transactions += 1


class _Attempt:
    """The state that a transaction is building, and the one before it."""

    def __init__(
        self,
        tables: dict[TableRef, TableContents],
        before: dict[TableRef, TableContents],
        ref: TableRef,
    ) -> None:
        self.tables = tables
        self._before = before.get(ref, TableContents())
        self._ref = ref

    def perform(self, command: Command) -> None:
        match command:
            case AddTable():
                self.tables.setdefault(self._ref, TableContents())
                return
            case DeleteTable():
                self._table(command)
                del self.tables[self._ref]
                self._before = TableContents()  # everything in it went with it, uses included
                return
        table = self._table(command)
        match command:
            case AddChain():
                self._add_chain(table, command)
            case FlushChain():
                self._chain(table, command.name, command).rules.clear()
            case DeleteChain():
                self._delete_chain(table, command)
            case AddRule():
                self._add_rule(table, command)
            case AddContainer():
                self._add_container(table, command)
            case FlushContainer():
                self._container(table, command.container.name, command).elements.clear()
            case DeleteContainer():
                self._delete_container(table, command)
            case AddElements():
                self._add_elements(table, command)
            case DeleteElements():
                self._delete_elements(table, command)

    def _table(self, command: Command) -> TableContents:
        table = self.tables.get(self._ref)
        if table is None:
            raise FakeError("ENOENT", command, f"no table {self._ref}")
        return table

    def _chain(self, table: TableContents, name: str, command: Command) -> ChainContents:
        chain = table.chains.get(name)
        if chain is None:
            raise FakeError("ENOENT", command, f"no chain {name}")
        return chain

    def _container(self, table: TableContents, name: str, command: Command) -> ContainerContents:
        container = table.containers.get(name)
        if container is None:
            raise FakeError("ENOENT", command, f"no set or map {name}")
        return container

    def _add_chain(self, table: TableContents, command: AddChain) -> None:
        if not 0 < len(command.name.encode()) <= NAME_MAX:
            raise FakeError("EINVAL", command, f"a name of {len(command.name)} bytes")
        chain = table.chains.setdefault(command.name, ChainContents(command.hook))
        if chain.hook != command.hook:
            raise FakeError("EEXIST", command, f"the chain has hook {chain.hook}")

    def _delete_chain(self, table: TableContents, command: DeleteChain) -> None:
        self._chain(table, command.name, command)
        users = _chain_users(table, command.name) + _chain_users(self._before, command.name)
        if users:
            raise FakeError("EBUSY", command, f"used by {users}")
        del table.chains[command.name]

    def _add_rule(self, table: TableContents, command: AddRule) -> None:
        chain = self._chain(table, command.chain, command)
        for part in command.rule.statements:
            for name in chains_of(part):
                self._chain(table, name, command)
            if container_of(part):
                self._check_lookup(
                    self._container(table, container_of(part), command).definition, part, command
                )
            problem = _wrong_statement(part, self._ref.family)
            if problem:
                raise FakeError("EINVAL", command, problem)
        chain.rules.append(command.rule)

    @staticmethod
    def _check_lookup(definition: NftContainer, part: Statement, command: Command) -> None:
        name, value = definition.name, definition.value
        wanted = {Vmap: "verdict", DnatMap: "target", DnatBucket: "target", Balance: "target"}.get(
            type(part), "none"
        )
        if value != wanted:
            raise FakeError("EINVAL", command, f"{name} holds {value}, not {wanted}")
        if isinstance(part, InSet | Vmap | DnatMap) and definition.key != tuple(
            _TYPES[field] for field in part.fields
        ):
            raise FakeError("EINVAL", command, f"{name} is not for {part.fields}")
        if isinstance(part, DnatBucket) and definition.key != (
            *(_TYPES[field] for field in part.fields),
            "numgen",
        ):
            raise FakeError("EINVAL", command, f"{name} is not for {part.fields} and a number")
        if isinstance(part, Balance) and not definition.by_number:
            raise FakeError("EINVAL", command, f"{name} is not for numbers")
        if isinstance(part, Balance) and part.protocol != definition.protocol:
            raise FakeError("EINVAL", command, f"{name} is for {definition.protocol}")
        if isinstance(part, Remember) and not definition.timeout_s:
            raise FakeError("EINVAL", command, f"{name} is not for packets to fill")

    def _add_container(self, table: TableContents, command: AddContainer) -> None:
        wanted = command.container
        container = table.containers.setdefault(wanted.name, ContainerContents(wanted))
        if container.definition != wanted:
            raise FakeError("EEXIST", command, f"it is {container.definition}")

    def _delete_container(self, table: TableContents, command: DeleteContainer) -> None:
        name = command.container.name
        self._container(table, name, command)
        users = _container_users(table, name) + _container_users(self._before, name)
        if users:
            raise FakeError("EBUSY", command, f"used by {users}")
        del table.containers[name]

    def _add_elements(self, table: TableContents, command: AddElements) -> None:
        container = self._container(table, command.container, command)
        if not command.items:
            raise FakeError("EINVAL", command, "no elements")
        for key, value in command.items:
            problem = _wrong(container.definition, key, value, self._ref.family)
            if problem:
                raise FakeError("EINVAL", command, problem)
            if isinstance(value, NftVerdict) and value.chain:
                self._chain(table, value.chain, command)
            if container.elements.setdefault(key, value) != value:
                raise FakeError("EEXIST", command, f"{key} is {container.elements[key]}")

    def _delete_elements(self, table: TableContents, command: DeleteElements) -> None:
        container = self._container(table, command.container, command)
        if not command.keys:
            raise FakeError("EINVAL", command, "no elements")
        for key in command.keys:
            if key not in container.elements:
                raise FakeError("ENOENT", command, f"no element {key}")
            del container.elements[key]


def _wrong(definition: NftContainer, key: Key, value: Value, family: NftFamily) -> str:
    """What is wrong with an element; "" if nothing is."""
    if len(key) != len(definition.key):
        return f"key {key} for {definition.key}"
    for part, kind in zip(key, definition.key, strict=True):
        if not _fits(part, kind, family):
            return f"{part!r} is no {kind}"
    if isinstance(value, RemainingTime):
        return (
            ""
            if 0 < value.seconds <= definition.timeout_s
            else f"{definition.name} does not keep for {value.seconds} s"
        )
    holds = {"none": type(None), "verdict": NftVerdict, "target": DnatTarget}[definition.value]
    if not isinstance(value, holds):
        return f"value {value} in a {definition.kind} of {definition.value}"
    if isinstance(value, DnatTarget) and not (
        _fits(value.ip, "addr", family) and _fits(value.port, "port", family)
    ):
        return f"target {value}"
    return ""


def _wrong_statement(part: Statement, family: NftFamily) -> str:
    """What is wrong with a statement by itself; "" if nothing is."""
    match part:
        case Balance(_, count, offset, _) if not (count > 0 and offset + count <= 2**32):
            return f"numgen mod {count} offset {offset}"
        case GotoOneOf(()) | DnatBucket(_, 0, _):
            return "numgen mod 0"
        case AddressIn(_, texts):
            if not texts:
                return "no networks"
            if networks(texts, "IPv4" if family == "ip" else "IPv6") != texts:
                return f"networks {texts} overlap, or are not of the family"
        case Dnat(_, ip, port) if not (_fits(ip, "addr", family) and _fits(port, "port", family)):
            return f"target {ip} {port}"
    return ""


def _fits(part: str | int, kind: str, family: NftFamily) -> bool:
    if kind == "addr":
        if not isinstance(part, str):
            return False
        try:
            address = ipaddress.ip_address(part)
        except ValueError:
            return False
        return address.version == (4 if family == "ip" else 6) and str(address) == part
    if kind == "proto":
        return part in {"tcp", "udp", "sctp"}
    bound = 65535 if kind == "port" else 2**32 - 1
    return isinstance(part, int) and 0 <= part <= bound


def chains_of(statement: Statement) -> tuple[str, ...]:
    """The chains that a statement names."""
    match statement:
        case Jump(chain) | Goto(chain):
            return (chain,)
        case GotoOneOf(chains):
            return chains
    return ()


def container_of(statement: Statement) -> str:
    """The set or map that a statement names; "" if none."""
    return (
        statement.container
        if isinstance(statement, InSet | Vmap | DnatMap | DnatBucket | Balance | Remember)
        else ""
    )
