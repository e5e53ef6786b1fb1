"""``python -m sliceplane`` is ``sliceplane``."""

from sliceplane.cli.main import main

if __name__ == "__main__":
    main()
