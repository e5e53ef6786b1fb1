"""A plane for tests: started in a thread, with faults that a program must survive."""
