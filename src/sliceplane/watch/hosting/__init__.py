"""Runs controllers: informers feed their events, one loop each executes their writes."""
