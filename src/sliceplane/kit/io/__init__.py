"""Parts of every program: logs, file descriptors, small HTTP pages, metrics as text, start errors."""
