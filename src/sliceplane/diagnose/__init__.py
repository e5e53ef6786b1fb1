"""One engine of findings and the readers around it: explain, lint, status, drift, trace, timeline,
the web page.
"""
