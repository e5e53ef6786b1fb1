"""A cluster's name server as a process: its sockets, its informers, its pages; ``dns`` is its
core.
"""
