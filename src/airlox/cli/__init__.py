"""The command line: parses, calls one method of the session, prints. Start in `main.py`."""
