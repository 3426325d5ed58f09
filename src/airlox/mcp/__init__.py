"""Airlox for programs that speak the Model Context Protocol: tools over the client.

`tools/` are plain blocking functions that know neither the protocol's SDK nor asyncio; `server.py`
speaks the protocol and runs them in threads.
"""
