"""Controllers as cores: informer changes in, API writes out, one file or folder each.

Promises: level-driven and idempotent; jobs for one key are strictly ordered; a controller that was
killed at any moment and started again converges with no needless write.
Never: performs a write itself, reads a clock, logs.
"""
