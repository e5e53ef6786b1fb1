"""The API server: documents and kinds (``registry``), storage, fairness, and the programs that
serve them (``io``).
"""
