"""What a sender has of a tree, as the records of packs: contents, recipes, chunks, and the index.

What is sent is checked against the index while it is read. Recipes are made when they are first
needed, and can be kept for the next tree of the same folder, whose recipes then say which chunks
the runner has got.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from airlox.tree.beneath import Folders
from airlox.tree.chunks import Cutter, Recipe, encode_recipe, is_large
from airlox.tree.index import Entry, TreeIndex
from airlox.tree.packs import Record, What, content_record
from airlox.tree.read import read_checked, read_chunks, read_pointer
from airlox.tree.scan import Scan, opened_tree


class Part(NamedTuple):
    """What to send of a large content: its recipe or not, and the chunks with these digests
    (None: all). A small content is always sent whole."""

    recipe: bool
    chunks: frozenset[bytes] | None


ALL: Final = Part(recipe=True, chunks=None)


class TreeSource:
    """The contents of a scanned tree with its index. One thread at a time."""

    def __init__(self, scan: Scan, index: TreeIndex, cutter: Cutter) -> None:
        self.index = index
        self.scan = scan
        self._cutter = cutter
        self._recipes: dict[bytes, Recipe] = {}
        self._entries: dict[bytes, Entry] = {}
        self._pointers = frozenset(scan.pointers)

    @property
    def recipes(self) -> dict[bytes, Recipe]:
        """Those made so far, by the digest of their content."""
        return dict(self._recipes)

    def know(self, recipes: Mapping[bytes, Recipe]) -> None:
        """Recipes made earlier, so that nothing unchanged is cut again."""
        self._recipes.update(
            (digest, recipe)
            for digest, size in (*self.index.sizes().items(), self._itself)
            if is_large(size) and (recipe := recipes.get(digest)) and recipe.size == size
        )

    def recipe(self, digest: bytes) -> Recipe:
        """The recipe of a large content of this tree. Raises TreeError."""
        if digest not in self._recipes:
            if digest == self.index.digest:
                self._recipes[digest] = self._cutter.recipe((self.index.encode(),))
            else:
                with (
                    opened_tree(self.scan.root, self.scan.root_is) as root_fd,
                    Folders(root_fd) as folders,
                ):
                    source = read_checked(folders, self._entry(digest))
                    self._recipes[digest] = self._cutter.recipe(source)
        return self._recipes[digest]

    def records(self, wanted: Mapping[bytes, Part]) -> Iterator[Record]:
        """What is `wanted` of contents, by digest, in the order of paths. Raises TreeError."""
        missing = dict(wanted)
        with opened_tree(self.scan.root, self.scan.root_is) as root_fd, Folders(root_fd) as folders:
            for entry in self.index.entries:
                part = missing.pop(entry.digest, None)
                if part is not None and is_large(entry.size):
                    yield from self._large(folders, entry, part)
                elif part is not None:
                    yield content_record(entry.digest, self._small(folders, entry))

    def index_records(self, part: Part = ALL) -> Iterator[Record]:
        """The index itself, as one more content."""
        data = self.index.encode()
        digest = self.index.digest
        if not is_large(len(data)):
            yield content_record(digest, data)
            return
        recipe = self.recipe(digest)
        if part.recipe:
            yield _recipe_record(digest, recipe)
        at = 0
        for chunk in recipe.chunks:
            if part.chunks is None or chunk.digest in part.chunks:
                yield content_record(chunk.digest, data[at : at + chunk.length])
            at += chunk.length

    @property
    def _itself(self) -> tuple[bytes, int]:
        return self.index.digest, len(self.index.encode())

    def _small(self, folders: Folders, entry: Entry) -> bytes:
        if entry.path in self._pointers:
            return read_pointer(folders, entry)
        return b"".join(read_checked(folders, entry))

    def _large(self, folders: Folders, entry: Entry, part: Part) -> Iterator[Record]:
        recipe = self.recipe(entry.digest)
        if part.recipe:
            yield _recipe_record(entry.digest, recipe)
        wanted = recipe.digests if part.chunks is None else part.chunks
        for chunk, data in read_chunks(folders, entry, recipe, wanted):
            yield content_record(chunk.digest, data)

    def _entry(self, digest: bytes) -> Entry:
        if not self._entries:
            self._entries = {entry.digest: entry for entry in self.index.entries}
        return self._entries[digest]


def _recipe_record(digest: bytes, recipe: Recipe) -> Record:
    return Record(What.RECIPE, digest, recipe.size, encode_recipe(recipe))
