"""Commands that report on a plane or a cluster."""
