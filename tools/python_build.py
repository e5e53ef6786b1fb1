"""Whether this Python was built with optimisation: ``quick`` or ``slow``; exit code 1 where it is
too old for us.

A Python that was configured without ``--enable-optimizations`` and loads libpython, as pyenv builds
it, takes a third longer for everything than Debian's, whose library is in the program.
``install.sh`` asks each Python that it finds, so this runs with any version; ``python -m
benchmarks`` says what its figures were made with.
"""

import sys


def is_slow() -> bool:
    import sysconfig

    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return False
    try:
        with open("/proc/self/maps") as maps:
            return "libpython" in maps.read()
    except OSError:
        return False


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  # any Python may be asked
        sys.exit(1)
    print("slow" if is_slow() else "quick")
