"""The HTTP client of an API server: HTTP/1.1, its connections, and the server's answers."""
