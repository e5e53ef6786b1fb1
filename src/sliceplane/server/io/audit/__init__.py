"""The audit log: every request, its user and its outcome."""
