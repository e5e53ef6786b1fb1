"""What benchmarks are made of: objects of a given size, processes that are watched, cheap TLS
watchers.
"""
