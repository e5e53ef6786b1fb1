"""The modules of the public Python client, which ``sliceplane.client`` offers."""
