"""Encodes a transaction as one batch: the kernel applies the messages between its first and its last
one atomically.

All messages of a command have its number as their sequence number, so that an answer identifies the
command. The last message requests an acknowledgement: a batch without any answer was not applied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec

from sliceplane.node.nft import objects
from sliceplane.node.nft.netlink import containers
from sliceplane.node.nft.netlink.expressions import NFPROTO, Expressions
from sliceplane.node.nft.netlink.messages import (
    ACK,
    APPEND,
    CREATE,
    HEADER,
    Inexpressible,
    boundary,
    message,
    nest,
    number,
    text,
)

# Types of messages: NFNL_MSG_BATCH_*, and of the subsystem nftables NFT_MSG_*.
_BEGIN, _END = 16, 17
_SUBSYSTEM = 10
(
    _NEW_TABLE,
    _DELETE_TABLE,
    _NEW_CHAIN,
    _DELETE_CHAIN,
    _NEW_RULE,
    _DELETE_RULE,
    _NEW_SET,
    _DELETE_SET,
) = (_SUBSYSTEM << 8 | kind for kind in (0, 2, 3, 5, 6, 8, 9, 11))
_NEW_ELEMENTS, _DELETE_ELEMENTS = (_SUBSYSTEM << 8 | kind for kind in (12, 14))

# NFTA_TABLE_*, NFTA_CHAIN_*, NFTA_HOOK_*, NFTA_RULE_*
_TABLE_NAME, _TABLE_FLAGS = 1, 2
_TABLE_OF, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_TYPE = 1, 3, 4, 7
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2
_RULE_CHAIN, _RULE_EXPRESSIONS = 2, 4
_HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}


class MessageBatch(msgspec.Struct, frozen=True):
    """The messages of one transaction, sent as one datagram."""

    data: bytes | bytearray
    #: the sequence number that the kernel acknowledges after success
    last: int


def encode(transaction: objects.Transaction) -> MessageBatch:
    """Encodes all of *transaction*, or raises ``Inexpressible``."""
    try:
        return _Encoder(transaction).run()
    except (ValueError, KeyError, struct.error) as error:
        raise Inexpressible(f"messages cannot encode it: {error!r}") from error


class _Encoder:
    """The messages so far, and the numbers of sets."""

    def __init__(self, transaction: objects.Transaction) -> None:
        self._transaction = transaction
        self._table = transaction.table.name
        self._text_family = transaction.table.family
        self._family = NFPROTO[transaction.table.family]
        self._data = bytearray()
        self._last = 0  # offset of the last message in the data
        self._sequence = 0
        self._sets = 0
        #: the first attribute of messages about chains and rules
        self._head = text(_TABLE_OF, self._table)
        self._expressions: Expressions | None = None  # created for the first rule

    def run(self) -> MessageBatch:
        self._data += boundary(_BEGIN, 0, _SUBSYSTEM)
        for command in self._transaction.commands:
            self._sequence += 1
            self._add(command)
        length, kind, flags, sequence, sender = HEADER.unpack_from(self._data, self._last)
        HEADER.pack_into(self._data, self._last, length, kind, flags | ACK, sequence, sender)
        self._data += boundary(_END, self._sequence + 1, _SUBSYSTEM)
        return MessageBatch(self._data, self._sequence)

    def _add(self, command: objects.Command) -> None:
        table = self._table
        match command:
            case objects.AddTable():
                self._append(_NEW_TABLE, text(_TABLE_NAME, table) + number(_TABLE_FLAGS, 0))
            case objects.DeleteTable():
                self._append(_DELETE_TABLE, text(_TABLE_NAME, table))
            case objects.AddChain(name, hook):
                body = self._head + text(_CHAIN_NAME, name)
                self._append(_NEW_CHAIN, body + (b"" if hook is None else _attached(hook)), CREATE)
            case objects.FlushChain(name):
                self._append(_DELETE_RULE, self._head + text(_RULE_CHAIN, name))
            case objects.DeleteChain(name):
                self._append(_DELETE_CHAIN, self._head + text(_CHAIN_NAME, name))
            case objects.AddRule(chain, rule):
                self._add_rule(chain, rule)
            case objects.AddContainer(container):
                self._sets += 1
                self._append(
                    _NEW_SET,
                    containers.definition(table, container, self._text_family, self._sets),
                    CREATE,
                )
            case objects.DeleteContainer(container):
                self._append(_DELETE_SET, containers.reference(table, container.name))
            case objects.FlushContainer(container):
                self._append(_DELETE_ELEMENTS, containers.reference(table, container.name))
            case objects.AddElements(name, items):
                for body in containers.element_lists(
                    table, name, containers.elements(items, self._text_family)
                ):
                    self._append(_NEW_ELEMENTS, body, CREATE)
            case objects.DeleteElements(name, keys):
                for body in containers.element_lists(
                    table, name, containers.keys(keys, self._text_family)
                ):
                    self._append(_DELETE_ELEMENTS, body)

    def _append(self, kind: int, body: bytes, flags: int = 0) -> None:
        self._last = len(self._data)
        self._data += message(kind, flags, self._sequence, self._family, body)

    def _add_rule(self, chain: str, rule: objects.NftRule) -> None:
        if self._expressions is None:
            self._expressions = Expressions(self._table, self._text_family, self._make_set)
        expressions = self._expressions.encode(
            rule.statements
        )  # appends the rule's anonymous sets first
        body = self._head + text(_RULE_CHAIN, chain)
        self._append(_NEW_RULE, body + nest(_RULE_EXPRESSIONS, expressions), CREATE | APPEND)

    def _make_set(
        self, name: str, definition: Callable[[int], bytes], elements: Sequence[bytes]
    ) -> int:
        self._sets += 1
        self._append(_NEW_SET, definition(self._sets), CREATE)
        for body in containers.element_lists(self._table, name, elements, self._sets):
            self._append(_NEW_ELEMENTS, body, CREATE)
        return self._sets


def _attached(hook: objects.Hook) -> bytes:
    """Encodes a hook.  The policy of the chain is accept, the kernel's default."""
    where = number(_HOOK_NUMBER, _HOOKS[hook.point]) + number(_HOOK_PRIORITY, hook.priority)
    return text(_CHAIN_TYPE, hook.type) + nest(_CHAIN_HOOK, where)
