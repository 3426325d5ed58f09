"""A working tree on its way to a runner, and the repository that may go with it.

A tree that is as it was costs a glance (`tree/glance.py`); its files are looked at when something
of them has to be sent. The repository is a tree of its own, of a small copy (`tree/replica.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from airlox import __version__
from airlox.client.shipment import Shipment
from airlox.protocol.digest import sha256_hex
from airlox.protocol.encoding import PublicKey
from airlox.tree.beneath import Identity
from airlox.tree.glance import Facts, Memory, facts_of, look
from airlox.tree.read import ScanCache, changed, read_index
from airlox.tree.scan import Choice, Scan, replaced, root_of, scan
from airlox.tree.source import TreeSource

if TYPE_CHECKING:
    from airlox.client.membership import Membership

CheckRoot = Callable[[str], Identity]


class WorkTree(Shipment):
    """One folder. `root` is the top of its tree; `sub` the folder within the tree, "" for its top.

    `check_root` is told the root before anything is read; it says which folder that must be, and
    stay, or raises. Raises TreeError when the folder cannot be sent.
    """

    def __init__(
        self,
        me: Membership,
        folder: str,
        *,
        runner: PublicKey | None,
        choice: Choice,
        check_root: CheckRoot | None = None,
    ) -> None:
        self.root, self.sub = root_of(folder)
        self._root_is = None if check_root is None else check_root(self.root)
        super().__init__(me, _root_id(self.root), runner)
        self._choice = choice
        self._facts: Facts | None = None
        self._facts = self._find_out()

    @property
    def facts(self) -> Facts:
        assert self._facts is not None
        return self._facts

    @property
    def digest(self) -> bytes:
        return self.facts.digest

    @cached_property
    def source(self) -> TreeSource:
        found = scan(self.root, self._choice)
        if self._root_is not in (None, found.root_is):
            raise replaced(self.root)
        # With the content of Git LFS it is another tree, file by file.
        index = read_index(found, ScanCache(self._path("scan-lfs" if self._choice.lfs else "scan")))
        if self._facts is not None and index.digest != self._facts.digest:
            raise changed(os.fsencode(self.root))
        return TreeSource(found, index, self._cutter())

    def repository(self) -> RepositoryTree:
        """The repository of this tree. Raises TreeError."""
        return RepositoryTree(self._me, self, runner=self._runner, choice=self._choice)

    def _find_out(self) -> Facts:
        memory = Memory(self._path("glance"))
        glance = look(self.root, self._choice, rules_version=__version__)
        facts = None if glance is None else memory.recall(self.root, glance)
        if facts is not None:
            return facts
        if glance is not None:
            memory.keep(glance, self.source.scan, self.source.index)
        return facts_of(self.source.scan, self.source.index)

    def _path(self, what: str) -> str:
        return self._me.cache.state_path(f"{what}-{self._kept_as}")


class RepositoryTree(Shipment):
    """What goes of the repository of a tree. `is_shallow`: older commits are not here.

    Raises TreeError where there is none, or too much of it.
    """

    def __init__(
        self, me: Membership, tree: WorkTree, *, runner: PublicKey | None, choice: Choice
    ) -> None:
        from airlox.tree import metadata  # rarely needed
        from airlox.tree.replica import replica_of

        kept_as = f"{_root_id(tree.root)}-git"
        super().__init__(me, kept_as, runner)
        found = metadata.look(tree.root)
        self.is_shallow = bool(found.shallow)
        folder = me.cache.state_path(f"replicas-{kept_as}")
        left_out = tree.facts.left_out
        self._replica = replica_of(found, choice, left_out, folder, rules_version=__version__)

    @property
    def digest(self) -> bytes:
        return self._replica.files.digest

    @cached_property
    def source(self) -> TreeSource:
        return TreeSource(Scan(self._replica.root, (), ()), self._replica.files, self._cutter())


def _root_id(root: str) -> str:
    return sha256_hex(os.fsencode(root))[:16]
