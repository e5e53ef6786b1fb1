"""Clients of an API server behind one interface: in-process and HTTP."""
