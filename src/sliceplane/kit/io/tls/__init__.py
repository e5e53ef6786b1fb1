"""TLS on the ports of servers: accepting, transport, unauthenticated connections."""
