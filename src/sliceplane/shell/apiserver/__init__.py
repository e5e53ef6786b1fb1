"""The HTTPS face of the registry: routing, negotiation, authentication, watch streams."""
