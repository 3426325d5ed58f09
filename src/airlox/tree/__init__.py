"""A directory as data: which files to send, their index, packs, and a workspace made equal to it.

Sender: `scan` → `read_index` → `write_packs(read_contents(…))`.
Runner: `ContentStore` → `parse_index` → `what_is_lacking` → `apply`.
No network and no keys here.
"""
