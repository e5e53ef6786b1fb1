"""Faults planted in a healthy cluster, and near misses, one module for each part of the catalogue.

``test_catalogue`` asks about each; ``docs/findings`` shows the answer to the first of each code.
This package imports all of its modules, which fill the lists of ``tests.diagnose.explain.world``.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
