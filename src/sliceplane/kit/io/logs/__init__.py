"""Log lines: their form, and the thread that writes them."""
