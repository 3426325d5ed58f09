"""Parsers of foreign bytes under random and coverage-guided inputs: `make fuzz`, `make test`.

`targets.py` is the table: a name, a function of bytes, and inputs to begin with. The functions
are in `documents.py`, `streams.py`, `requests.py`, `jobs.py`, `containers.py` and `files.py`, by
what they read. `__main__.py` runs them under atheris; `test_targets.py` needs no atheris.
"""
