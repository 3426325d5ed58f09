"""The relay: stores and forwards ciphertext. Knows signatures and limits, never a session key."""
