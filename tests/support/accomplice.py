"""One who was cut off from a session and keeps link, keys and cache, and a relay that helps.

The relay hands over every byte it holds: they are read from its own store and memory.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from airlox import Session
from airlox.errors import DecryptError
from airlox.protocol.encoding import ItemId, PublicKey, b64u_encode
from airlox.protocol.epochs import fold_epochs, open_role_seed, open_session_key, parse_epoch
from airlox.protocol.item import ItemRef, decrypt_item, parse_envelope
from airlox.protocol.keyring import Keyring
from airlox.protocol.keys import MEMBER_ROLES, SigningKey
from airlox.protocol.live import LiveReader
from support.relay import RelayThread


class Accomplice:
    """One who was cut off, together with the relay's own store."""

    def __init__(self, relay: RelayThread, gone: Session) -> None:
        self._relay = relay
        self._me = gone._core.membership
        self.keys: list[bytes] = []

    @property
    def _session(self) -> Any:
        return self._relay.relay.core.sessions[self._me.manifest.session_id]

    def stored(self) -> list[tuple[str, bytes]]:
        """Envelope and blob of every item whose bytes the relay still has, oldest first."""
        session = self._session
        found = []
        for item_id, item in session.items.items():
            if item.has_blob:
                event = session.events[item.seq]
                envelope = json.loads(event.data)["envelope"]
                found.append((envelope, self._relay.call(self._read, session.id, item_id)))
        return found

    async def _read(self, sid: Any, name: str) -> bytes:
        reader = await self._relay.relay.core.store.open_blob(sid, name)
        try:
            return bytes(await reader.read(1 << 24))
        finally:
            reader.close()

    def learn(self) -> None:
        """Everything that can be made of the link, the own key, the cache and the documents."""
        me, documents = self._me, self._session.epoch_documents
        keyring = Keyring(me.manifest, me.invite, me.key)
        keyring.learn_all(documents)
        self.keys = [*keyring.newest_first(), *me.keys.newest_first()]
        held = [me.key, SigningKey.from_seed(me.invite.role_seed)]
        for at, document in enumerate(documents):
            epoch = parse_epoch(document, me.manifest, fold_epochs(documents[:at], me.manifest))
            for key in held:
                for role in MEMBER_ROLES:
                    self._try(open_session_key, epoch, me.manifest.session_id, role, key)
                self._try(open_role_seed, epoch, me.manifest.session_id, key)

    def _try(self, opening: Callable[..., bytes], *given: Any) -> None:
        try:
            self.keys.append(opening(*given))
        except DecryptError:
            return

    def opens(self, envelope: str, blob: bytes) -> bool:
        self.learn()
        parsed = parse_envelope(envelope)
        for key in self.keys:
            try:
                decrypt_item(parsed, blob, key)
            except DecryptError:
                continue
            return True
        return False

    def reads(self, job: str, runner: str) -> int:
        """Segments of a job's live output that open, of those that the relay holds."""
        self.learn()
        live, sid = self._relay.relay.live, self._session.id
        count = 0
        for held in live._rings[(sid, ItemId(job))].held:
            data = held.message.split(b"data: ", 1)[1].split(b"\n", 1)[0]
            frame = base64.b64decode(json.loads(data)["frame"])
            digest = self._session.jobs[ItemId(job)].blob_sha256
            named = ItemRef(blob_sha256=b64u_encode(digest), id=job)
            count += any(self._reads(frame, key, named, PublicKey(runner)) for key in self.keys)
        return count

    def _reads(self, frame: bytes, key: bytes, job: ItemRef, runner: Any) -> bool:
        sid = self._me.manifest.session_id
        try:
            LiveReader(key, sid, job, runner, later_key=lambda _: key).read(frame)
        except DecryptError:
            return False
        return True
