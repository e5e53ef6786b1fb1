"""Hosts the shadow of the slice controllers."""
