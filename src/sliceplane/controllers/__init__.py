"""Controllers as cores: informer changes in, API writes out, one file or folder each.

Promises: level-driven and idempotent; jobs for one key are strictly ordered; a controller that is
killed at any moment and restarted converges without a needless write. A core never executes a write
itself, reads a clock or logs.
"""
