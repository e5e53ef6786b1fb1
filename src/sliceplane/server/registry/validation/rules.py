"""Rules of members as rows: each maker returns a function of the path of an object and the object to its complaints.

A row stands for one check of ``pkg/apis/core/validation/validation.go``; ``check`` runs rows in their order, which is
that of upstream's complaints.  A member that is missing is what Go calls zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from sliceplane.api.errors import FieldError, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document

Rule = Callable[[str, Document], list[FieldError]]
#: the complaints about one value at one path
Check = Callable[[str, Any], list[FieldError]]
NOT_NEGATIVE: Final = "must be greater than or equal to 0"
POSITIVE: Final = "must be greater than 0"
_MODE_MAX: Final = 0o777
_MODE_DETAIL: Final = "must be a number between 0 and 0777 (octal), both inclusive"


def check(path: str, value: Document, rows: Iterable[Rule]) -> list[FieldError]:
    return [error for row in rows for error in row(path, value)]


def needs(*members: str, detail: str = "") -> Rule:
    """Members that must be there and not be empty."""
    return lambda path, value: [required(f"{path}.{member}", detail) for member in members if not value.get(member)]


def one_of(member: str, *values: str, empty: bool = False) -> Rule:
    """One of *values* if the member is there.  *empty*: the empty text is nothing."""

    def rule(path: str, value: Document) -> list[FieldError]:
        given = value.get(member)
        if given is None or given in values or (empty and not given):
            return []
        return [not_supported(f"{path}.{member}", given, values)]

    return rule


def within(member: str, low: int, high: int, detail: str = "") -> Rule:
    told = detail or f"must be between {low} and {high}, inclusive"
    return lambda path, value: (
        [invalid_value(f"{path}.{member}", value[member], told)]
        if member in value and not low <= value[member] <= high
        else []
    )


def file_mode(member: str) -> Rule:
    return within(member, 0, _MODE_MAX, _MODE_DETAIL)


def not_negative(*members: str) -> Rule:
    return lambda path, value: [
        invalid_value(f"{path}.{member}", value[member], NOT_NEGATIVE) for member in members if value.get(member, 0) < 0
    ]


def named(member: str, problems: Callable[[str], Iterable[str]], *, must: bool = False) -> Rule:
    """A name that *problems* has nothing to say of.  *must*: it may not be missing."""

    def rule(path: str, value: Document) -> list[FieldError]:
        name = value.get(member, "")
        if not name:
            return [required(f"{path}.{member}")] if must else []
        return [invalid_value(f"{path}.{member}", name, problem) for problem in problems(name)]

    return rule


def part(member: str, test: Check) -> Rule:
    """*test* of a member, if it is there."""
    return lambda path, value: test(f"{path}.{member}", value[member]) if member in value else []


def parts(member: str, test: Check) -> Rule:
    """*test* of each item of a list."""

    def rule(path: str, value: Document) -> list[FieldError]:
        errors: list[FieldError] = []
        for index, item in while_few(errors, enumerate(value.get(member, ()))):
            errors += test(f"{path}.{member}[{index}]", item)
        return errors

    return rule


def rows_of(*rows: Rule) -> Check:
    """The rows of an object as one check."""
    return lambda path, value: check(path, value, rows)


def no_way_up(path: str, text: str) -> list[FieldError]:
    return [invalid_value(path, text, "must not contain '..'")] if ".." in text.split("/") else []


def way_down(path: str, text: str) -> list[FieldError]:
    """A relative path that leads nowhere else."""
    absolute = [invalid_value(path, text, "must be a relative path")] if text.startswith("/") else []
    return absolute + no_way_up(path, text)


def way_of_user(path: str, text: str) -> list[FieldError]:
    """``way_down``, and no name that kubelets reserve."""
    reserved = text.startswith("..") and not text.startswith("../")
    return way_down(path, text) + ([invalid_value(path, text, "must not start with '..'")] if reserved else [])
