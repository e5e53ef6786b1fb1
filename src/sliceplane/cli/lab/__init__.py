"""Commands that simulate, predict and judge."""
