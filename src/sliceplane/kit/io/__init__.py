"""Parts that every program of ours has: logs, file descriptors, small HTTP pages, metrics as text,
errors at the start.
"""
