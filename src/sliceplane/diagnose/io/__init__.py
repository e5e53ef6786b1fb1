"""The reads of one command from a cluster or a data folder; no state is kept."""
