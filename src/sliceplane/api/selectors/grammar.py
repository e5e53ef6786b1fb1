"""The text form of label selectors: a lexer and a parser by recursive descent.

    selector    = [ requirement { "," requirement } ]
    requirement = "!" key | key | key operator value | key ("in" | "notin") "(" [ value { "," value } ] ")"
    operator    = "=" | "==" | "!=" | ">" | "<"

Where a key or a value may stand, ``in`` and ``notin`` are plain words. A missing value is the empty
string. Blanks separate tokens and mean nothing else. The sentences of errors are wire-visible
(staging/src/k8s.io/apimachinery/pkg/labels/selector.go), and so is which of several errors is found
first: left to right, the key before the operator, the values of a requirement only when all of it
was read.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NoReturn

from sliceplane.api.errors import StatusError, bad_request
from sliceplane.api.selectors.labels import (
    EVERYTHING,
    LabelRequirements,
    Operator,
    Requirement,
    key_problem,
    make_requirement,
)

_TOKEN: Final = re.compile(r"!=|==|[=!(),<>]|[^=!(),<> \t\r\n]+")

_PLAIN_TERM: Final = re.compile(
    r"(!)?([A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)(?:(==|!=|=)([A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|))?"
)
#: with fewer commas it is not worth looking
_PLAIN_MIN: Final = 100

_END: Final = "end of string"
_WORD: Final = "word"


class _Token(NamedTuple):
    """``kind`` is the symbol itself, "in", "notin", or one of the two marks above."""

    kind: str
    text: str


_OPERATORS: Final = {
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
    "=": Operator.EQUALS,
    "==": Operator.DOUBLE_EQUALS,
    "!=": Operator.NOT_EQUALS,
    ">": Operator.GREATER_THAN,
    "<": Operator.LESS_THAN,
}


def parse_labels(text: str) -> LabelRequirements:
    """Raises StatusError 400."""
    if not text:
        return EVERYTHING
    return (_plain(text) if text.count(",") > _PLAIN_MIN else None) or _Parser(text).selector()


def _plain(text: str) -> LabelRequirements | None:
    """A selector of good, short terms with one value at most, each once; ``None``: it is not that
    simple.

    A selector of 64 KiB has more than ten thousand terms, which take the parser a tenth of a
    second.
    """
    requirements = []
    for term in dict.fromkeys(text.split(",")):
        match = _PLAIN_TERM.fullmatch(term)
        if match is None:
            return None
        absent, key, operator, value = match.groups()
        if operator is None:
            requirements.append(
                Requirement(key, Operator.DOES_NOT_EXIST if absent else Operator.EXISTS)
            )
        elif absent:
            return None
        else:
            requirements.append(Requirement(key, _OPERATORS[operator], (value,)))
    return LabelRequirements(requirements)


class _Parser:
    """One parse.  ``_peek`` and ``_next`` return keywords as words: one rule alone needs operators."""

    def __init__(self, text: str) -> None:
        tokens = _TOKEN.findall(text)
        self._tokens = [
            _Token(token if token in _OPERATORS or token in "!()," else _WORD, token)
            for token in tokens
        ]
        self._position = 0

    def _raw(self) -> _Token:
        if self._position < len(self._tokens):
            return self._tokens[self._position]
        return _Token(_END, "")

    def _peek(self) -> _Token:
        token = self._raw()
        return _Token(_WORD, token.text) if token.kind in ("in", "notin") else token

    def _next(self) -> _Token:
        token = self._peek()
        self._position += 1
        return token

    def selector(self) -> LabelRequirements:
        requirements: list[Requirement] = []
        token = self._peek()
        if token.kind not in (_WORD, "!", _END):
            _fail(token, ", expected: !, identifier, or 'end of string'")
        while self._peek().kind != _END:
            try:
                requirements.append(self._requirement())
            except StatusError as error:
                raise bad_request(f"unable to parse requirement: {error.message}") from None
            token = self._next()
            if token.kind == _END:
                break
            if token.kind != ",":
                _fail(token, ", expected: ',' or 'end of string'")
            if self._peek().kind not in (_WORD, "!"):
                _fail(self._peek(), ", expected: identifier after ','")
        return LabelRequirements(requirements) if requirements else EVERYTHING

    def _requirement(self) -> Requirement:
        token = self._next()
        negated = token.kind == "!"
        if negated:
            token = self._next()
        if token.kind != _WORD:
            _fail(token, ", expected: identifier")
        problem = key_problem(token.text, "<nil>")
        if problem:
            raise bad_request(problem)
        if negated:
            return make_requirement(token.text, Operator.DOES_NOT_EXIST, ())
        if self._peek().kind in (_END, ","):
            return make_requirement(token.text, Operator.EXISTS, ())
        operator = self._operator()
        values = self._values() if operator in (Operator.IN, Operator.NOT_IN) else (self._value(),)
        return make_requirement(token.text, operator, values)

    def _operator(self) -> Operator:
        token = self._raw()
        self._position += 1
        operator = _OPERATORS.get(token.kind)
        if operator is None:
            _fail(token, ", expected: in, notin, =, ==, !=, gt, lt")
        return operator

    def _value(self) -> str:
        if self._peek().kind in (_END, ","):
            return ""
        token = self._next()
        if token.kind != _WORD:
            _fail(token, ", expected: identifier")
        return token.text

    def _values(self) -> tuple[str, ...]:
        opening = self._next()
        if opening.kind != "(":
            _fail(opening, " expected: '('")  # no comma here: upstream has none either
        if self._peek().kind not in (_WORD, ",", ")"):
            _fail(self._peek(), ", expected: ',', ')' or identifier")
        values: list[str] = []
        expect_value = True
        while True:
            token = self._next()
            if token.kind == _WORD and expect_value:
                values.append(token.text)
                expect_value = False
                if self._peek().kind not in (",", ")"):
                    _fail(self._peek(), ", expected: ',' or ')'")
            elif token.kind == ",":
                if expect_value:
                    values.append("")
                expect_value = True
            elif token.kind == ")":
                return (*values, "") if expect_value else tuple(values)
            else:
                _fail(token, ", expected: ',', or identifier")


def _fail(token: _Token, expected: str) -> NoReturn:
    raise bad_request(f"found '{token.text}'{expected}")
