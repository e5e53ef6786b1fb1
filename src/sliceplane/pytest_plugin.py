"""Fixtures for the tests of programs that use Services: pytest finds them where Sliceplane is
installed.

Nothing but pytest is imported until a test asks for a fixture. All fixtures are plain functions,
whose planes live in threads of their own: they mean the same to tests that are coroutines, in
whatever mode or library runs those.

- ``sliceplane``: a plane (``sliceplane.testing.Plane``) of this test's own, with
  ``sliceplane_options``.
- ``sliceplane_options``: what a module or a ``conftest.py`` overrides to have another one.
- ``sliceplane_planes``: makes any number of planes, which end with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sliceplane.testing import Plane


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Keep pytest from rewriting our assertions, as it does for all of a package that brings a
    plug-in: each process that cannot keep bytecode would spend seconds on it, and what ours say
    needs no help.
    """
    marked: set[str] = getattr(pluginmanager.rewrite_hook, "_must_rewrite", set())
    marked.discard("sliceplane")


@pytest.fixture
def sliceplane_options() -> dict[str, Any]:
    """Keyword arguments of the ``Plane`` of the fixture ``sliceplane``; none unless you override
    this.
    """
    return {}


@pytest.fixture
def sliceplane(sliceplane_options: dict[str, Any]) -> Iterator[Plane]:
    """A plane of this test's own: an API server and controllers, empty at the start and gone at the
    end.
    """
    from sliceplane.testing import Plane

    with Plane(**sliceplane_options) as plane:
        yield plane


@pytest.fixture
def sliceplane_planes() -> Iterator[Callable[..., Plane]]:
    """Start a ``Plane`` with these keyword arguments, as often as called; all end with the test."""
    from contextlib import ExitStack

    from sliceplane.testing import Plane

    with ExitStack() as running:
        yield lambda **options: running.enter_context(Plane(**options))
