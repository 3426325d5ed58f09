"""Every numeric bound of the format, with what it protects. A relay may set lower ones."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# session
LIFETIME_MS: Final = 30 * 24 * 3600 * 1000
"""A session ends after 30 days, or never."""
ITEM_BYTES: Final = 1024 * MIB
"""Largest `max_item_bytes`: a receiver holds an item in memory to open it."""
DEFAULT_ITEM_BYTES: Final = 25 * MIB
FEATURES: Final = 32
PACKAGE_NAME: Final = 100
PACKAGE_ENTRY: Final = 200

# people (in code points)
DISPLAY_NAME: Final = 64
DESCRIPTION: Final = 280
HOST: Final = 128
LABELS: Final = 16

# items
BLOB_OVERHEAD_BYTES: Final = 28
"""Nonce (12) and tag (16) around the payload."""
META_BYTES: Final = 4 * MIB
"""A reader parses the meta as JSON; the body is opaque."""
REFS: Final = 64
ENVELOPE_BYTES: Final = 16 * KIB
"""64 references and a header fit in 9 KiB."""
MANIFEST_BYTES: Final = 1 * MIB
JOIN_BYTES: Final = 16 * KIB
RECIPIENTS: Final = 64
"""Keys and roles in the `to` of a message: each key costs a reader a computation on the curve."""
DELIVERIES: Final = 100
"""Own items whose delivery is told at a time: each names everybody in the session."""
REASON: Final = 4096
"""Characters in the reason of a result or rejection."""
REASON_BYTES: Final = 4096
"""What our runner writes of a reason, in UTF-8."""
FILE_NAME_BYTES: Final = 255

# jobs
CODE_BYTES: Final = 1 * MIB
SCRIPT_BYTES: Final = 64 * KIB
COMMAND_WORDS: Final = 4096
COMMAND_BYTES: Final = 128 * KIB
"""One argument of a Linux process may have 128 KiB; the whole command is held to that."""
START_FOLDER_BYTES: Final = 4096
JOB_FILES: Final = 32
JOB_TIMEOUT_S: Final = 3600
JOB_MEMORY_MB: Final = (32, 65536)
LAYERS: Final = 16
PULL_PATTERNS: Final = 32
"""A runner matches every file it has against each of them."""
PULL_PATTERN_BYTES: Final = 1024
QUEUE_MS: Final = 7 * 24 * 3600 * 1000
"""A job waits for a slot for at most 7 days: what was signed long ago does not run."""

# results
OUTPUT_BYTES: Final = 1 * MIB
"""Each of stdout and stderr, as UTF-8 in the result."""
OUT_FILES: Final = 64
OUT_FILES_SENT: Final = 62
"""The header's 64 references hold the job, one link of the author's chain and 62 out files."""
LEFT_OUT: Final = 100
LEFT_OUT_TEXT: Final = 4096
HOSTS: Final = 64
"""Names of an allow list of the network."""
DENIED: Final = 20
"""Targets that a result names as not let through."""
ENV_TEXT: Final = 200
ENV_ENTRIES: Final = 512

# live output
SEGMENT_BYTES: Final = 64 * KIB
"""Plain bytes in one segment."""

# trees
PACK_BYTES: Final = 16 * MIB
"""Plain bytes in one pack: a receiver holds one in memory."""
PACKS: Final = 65536
LACK_BYTES: Final = 1 * MIB
"""Plain bytes of what a runner says it lacks: a bit for each content of the index."""

# timeline
TIMELINE_BYTES: Final = 64 * MIB
"""Joins and envelopes that a reader keeps of a session; 0.1.0 can read half of that."""
EVENT_JUMP: Final = 10_000
"""A jump of the event number beyond this is a relay's fault or lie, and is dropped."""
PAGE_EVENTS: Final = 1000
"""Events in one page of `/events` in sessions with `history`."""
PAGE_BYTES: Final = 1 * MIB
"""A page ends with the first event beyond this size."""
ALARMS: Final = 100
"""A reader keeps so many signs of a relay that lies; beyond it counts them."""
ALARMS_OF_ONE: Final = 20
"""Of these so many at most by what one author signed: nobody drowns what others show."""
FORGOTTEN_RANGES: Final = 1000
"""Ranges in one `forgotten` event. Relays count on it when they read their logs: it stays."""

# epochs
EPOCHS: Final = 128
"""Each is kept for good, and every newcomer reads all of them."""
EPOCH_KEPT: Final = 1024
"""Participants that one epoch names."""
EPOCH_BYTES: Final = 192 * KIB
"""A document that names so many fits, and all that a session may have fit in one answer."""

# audit trails
TRAIL_LINE_BYTES: Final = 8 * MIB
"""The longest is a manifest, escaped, or the list of what was forgotten at one time."""
TRAIL_ITEMS: Final = 500_000
"""What is kept of each item of a trail while it is checked takes some 400 bytes."""
TRAIL_PEOPLE: Final = 10_000
TRAIL_PROBLEMS: Final = 1000
"""Problems of a trail that are listed; others are counted."""

# transfer codes
CODE_CHARS: Final = 200
"""Of a code as somebody typed it."""
CODE_MESSAGE_BYTES: Final = 512
"""One message of the key exchange: the longest has some 150 bytes."""
SEALED_INVITE_BYTES: Final = 512
PARKED_BYTES: Final = 1 * KIB
"""The document a relay keeps of a parked code."""
