"""A Chromium for the tests of a module, and a tab for each test that fails if the page did what it
must not do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.ui.browser import Browser, Tab, program


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not program() and not os.environ.get("CI"):
        pytest.skip(
            "there is no Chromium: apt-get install chromium (tools/install.sh dev does it as root)"
        )
    with Browser() as running:
        yield running


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    made = browser.tab()
    yield made
    faults = list(made.faults)
    made.close()
    assert faults == []
