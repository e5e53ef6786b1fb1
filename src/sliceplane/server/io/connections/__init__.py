"""Connections of the server: the listening socket, TLS, and HTTP with limits."""
