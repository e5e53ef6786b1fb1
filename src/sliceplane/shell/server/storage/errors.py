"""Why a storage file cannot be used."""

from __future__ import annotations


class StorageError(Exception):
    """Opening or reading failed.  The text is one sentence for a person that names the file; the file is untouched."""
