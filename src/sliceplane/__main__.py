"""``python -m sliceplane`` is ``sliceplane``."""

from sliceplane.cli.entry import main

if __name__ == "__main__":
    main()
