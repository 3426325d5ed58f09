"""Timings, always beside a named peer in the same run. `python -m bench` runs them all."""
