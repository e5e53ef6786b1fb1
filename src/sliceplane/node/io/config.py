"""A file with a node proxy's configuration: it is read, validated, and watched while the proxy runs.

Upstream ends at every change of the file, and its supervisor starts it again. This proxy does so,
too, but validates the file first. If the file is invalid, it logs an error and continues with its
present configuration.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from sliceplane.api.gates import NEWEST, Release
from sliceplane.kit.io.files import read_bytes
from sliceplane.kit.io.log import get_logger
from sliceplane.node.configuration.parsing import parse_config
from sliceplane.node.configuration.settings import (
    FieldValues,
    ProxySettings,
    document_of,
    settings_of,
)
from sliceplane.node.configuration.validation import MODES, errors_of, notes_on

#: seconds between two checks of the file
CHECK_PERIOD_S: Final = 5.0
FILE_BYTES_MAX: Final = 1 << 20

_log = get_logger("node-proxy")


class ConfigError(Exception):
    """The file is invalid; ``str()`` has a line for each mistake, with its place."""


class ConfigFile(msgspec.Struct, frozen=True):
    """A valid file.  ``notes``: sentences about it for the administrator, with their places."""

    path: Path
    raw: bytes
    values: FieldValues
    notes: tuple[str, ...]


def load_config(
    path: Path, *, modes: tuple[str, ...] = MODES, release: Release = NEWEST
) -> ConfigFile:
    """Reads and validates a file.  Raises ``ConfigError``."""
    raw = _bytes_of(path)
    parsed = parse_config(raw)
    problems = parsed.problems or tuple(
        parsed.at(error) for error in errors_of(parsed.values, modes=modes, release=release)
    )
    if problems:
        raise ConfigError(
            "\n".join(_placed(path, problem.line, problem.text) for problem in problems)
        )
    notes = [parsed.at(note) for note in notes_on(parsed.values)]
    return ConfigFile(
        path, raw, parsed.values, tuple(_placed(path, note.line, note.text) for note in notes)
    )


def _placed(path: Path, line: int, text: str) -> str:
    return f"{path}:{line}: {text}" if line else f"{path}: {text}"


def _bytes_of(path: Path) -> bytes:
    try:
        return read_bytes(path, FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _meaning(config: ConfigFile) -> ProxySettings:
    return settings_of(config.values, listen_by_default=True)


async def changed(
    config: ConfigFile,
    check_now: asyncio.Event,
    *,
    modes: tuple[str, ...] = MODES,
    release: Release = NEWEST,
    check_period_s: float = CHECK_PERIOD_S,
) -> None:
    """Waits until the file is valid and its meaning differs from *config*. *check_now* requests an
    immediate check (SIGHUP), which reports an invalid file again.
    """
    last_raw = config.raw
    complained = ""
    while True:
        try:
            async with asyncio.timeout(check_period_s):
                await check_now.wait()
        except TimeoutError:
            pass
        requested = check_now.is_set()
        check_now.clear()
        try:
            raw = _bytes_of(config.path)
            if raw == last_raw and not requested:
                continue
            last_raw = raw
            if _meaning(load_config(config.path, modes=modes, release=release)) != _meaning(config):
                return
            complained = ""
        except ConfigError as error:
            if requested or str(error) != complained:
                complained = str(error)
                _log.error(
                    "the configuration file is not used", problem=complained.replace("\n", "; ")
                )


def written(path: Path, values: FieldValues) -> None:
    """Writes the whole configuration to *path*, for ``load_config``.  Raises ``ConfigError``."""
    import yaml

    try:
        path.write_text(
            yaml.safe_dump(document_of(values), sort_keys=True, default_flow_style=False)
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
