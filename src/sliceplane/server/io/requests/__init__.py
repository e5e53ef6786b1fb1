"""One request, from its head to its answer: ``app`` is the way that it goes."""
