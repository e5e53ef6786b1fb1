"""Programs of consumers that talk to an API server: progress reports, accounts, drains."""
