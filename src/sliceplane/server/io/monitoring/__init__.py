"""How the server does: its metrics, and how long its loop was held."""
