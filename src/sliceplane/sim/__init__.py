"""The same store and controllers on virtual time, from one seed."""
