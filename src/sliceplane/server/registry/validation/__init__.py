"""Rules of validation that several kinds share, or that are too long for a kind's own module
(``server.registry.kinds``)."""
