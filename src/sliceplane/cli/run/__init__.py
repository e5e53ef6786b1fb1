"""Commands that run a part of the plane."""
