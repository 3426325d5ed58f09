"""What a participant has still to link to: shared by its processes, kept over restarts, bounded."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from airlox.client import tips as tips_module
from airlox.client.cache import SessionCache
from airlox.client.tips import Tips
from airlox.protocol.chain import Link
from airlox.protocol.encoding import PublicKey, b64u_encode, new_item_id
from airlox.protocol.item import ItemRef

ME = PublicKey(b64u_encode(bytes(32)))


def link(seq: int | None = 1, *, stays: bool = False) -> Link:
    digest = b64u_encode(os.urandom(32))
    return Link(ItemRef(blob_sha256=digest, id=new_item_id(os.urandom(16))), seq, stays)


def tips_in(folder: Path, author: PublicKey = ME) -> Tips:
    cache = SessionCache(folder, "ax_x")
    cache.make()
    return Tips(cache, author)


def test_an_item_takes_the_place_of_those_it_names(tmp_path: Path) -> None:
    tips, a, b, c = tips_in(tmp_path), link(1), link(2, stays=True), link(None)
    tips.note(a, [])
    tips.note(b, [])
    assert tips.all() == [a, b]
    tips.note(c, [link().ref, b.ref, a.ref])
    assert tips.all() == tips_in(tmp_path).all() == [c]


def test_participants_of_one_cache_have_each_their_own(tmp_path: Path) -> None:
    tips_in(tmp_path).note(link(), [])
    assert tips_in(tmp_path).all()
    assert tips_in(tmp_path, PublicKey("B" * 43)).all() == []


def test_the_file_and_what_is_kept_stay_small(tmp_path: Path) -> None:
    tips, last = tips_in(tmp_path), link(0)
    for number in range(1, 400):
        tips.note(last, [])
        last = link(number)
    files = [path for path in tmp_path.rglob("chain-*") if path.is_file()]
    assert len(files) == 1
    assert files[0].stat().st_size < 2 * tips_module.REWRITE_BYTES
    assert [tip.seq for tip in tips.all()] == list(range(398 - tips_module.TIPS + 1, 399))


def test_torn_and_foreign_lines_cost_nothing_else(tmp_path: Path) -> None:
    tips, a, b = tips_in(tmp_path), link(1), link(2)
    tips.note(a, [])
    (path,) = tmp_path.rglob("chain-*")
    with path.open("ab") as file:
        file.write(b'{"item":{"id":"x"}}\n\xff\xff\n[]\n{"item"')
    tips.note(b, [])
    assert tips.all() == [a, b]


def test_threads_lose_nothing(tmp_path: Path) -> None:
    mine = [[link(n) for n in range(10)] for _ in range(4)]

    def note(links: list[Link]) -> None:
        for each in links:
            tips_in(tmp_path).note(each, [])

    threads = [threading.Thread(target=note, args=(links,)) for links in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {tip.ref.id for tip in tips_in(tmp_path).all()}
    assert found == {each.ref.id for links in mine for each in links}
