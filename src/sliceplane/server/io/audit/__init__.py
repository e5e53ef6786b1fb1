"""Who asked for what, and how it ended: the audit log."""
