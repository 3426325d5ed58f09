"""The protocol, pure: bytes and values in, values out or an error. One file per chapter.

Nothing here touches a socket, file, clock, environment or random source: time and random bytes
are arguments. What a function returns is verified; there is no "verify later".
"""
