"""Commands that move Services between a cluster's own controllers and ours."""
