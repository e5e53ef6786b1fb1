"""Paths that are no resource: discovery, OpenAPI, health checks, version, token keys, the
snapshot.
"""
