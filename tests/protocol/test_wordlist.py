"""The words of transfer codes keep the rules that their module states."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from airlox.protocol.wordlist import WORD_BITS, WORDS

SPELLINGS: Final = (
    (r"^[kgp]n", "n"),
    (r"^wr|^rh", "r"),
    (r"^ps|^x", "s"),
    (r"m[bn]$", "m"),
    (r"sch", "sk"),
    (r"tch|ch", "C"),
    (r"ph|v", "f"),
    (r"sh|(?:ti|ci|si|ssi)(?=on|an|al|ous)", "S"),
    (r"th", "0"),
    (r"wh", "w"),
    (r"dg(?=[eiy])", "J"),
    (r"(?<=[aeiou])gh(?=t|$)", ""),
    (r"gh", "g"),
    (r"ck", "k"),
    (r"sc(?=[eiy])|c(?=[eiy])|z", "s"),
    (r"qu", "kw"),
    (r"c|q", "k"),
    (r"g(?=[eiy])|j", "J"),
    (r"x", "ks"),
    (r"(?<=[a-zS0CJ])e$", ""),
    (r"(.)\1+", r"\1"),
    (r"[aeiouy]+", "A"),
    (r"(?<=A)h", ""),
    (r"A+", "A"),
)
"""How a word is said, roughly, after Philips's Metaphone; one sign stands for any vowel."""

_HURTFUL: Final = """
anal anus arse ass bastard bimbo bitch blood bomb bondage boob bosom breast bullet bum butt cancer
chink cock coffin coon corpse crap cripple crotch cum cunt damn dead death demon devil dick die
dildo dumb dwarf dyke erect fag fairy fart fat fatso fetus fuck gay genital ghetto gook grave
groin gun gypsy hell hoe homo hooker hump idiot illegal imbecile jerk jew kike kill knife lame
lesbian loser lust midget moron murder muslim naked native nazi negro nipple noose nude orgasm
orphan oriental panty paki pee penis pervert pimp piss poison poo poop porn prick pussy queer rape
rectal redskin retard rifle satan savage scrotum semen sex shag shit skank slave slut snuff
spastic sperm spic squaw stupid suck suicide terror testicle thug tit tomb torture tramp trans
turd ugly urine vagina virgin vomit wank weed wench wetback whip whore wop
"""
HURTFUL: Final = frozenset(_HURTFUL.split())


def sound(word: str) -> str:
    for spelling, said in SPELLINGS:
        word = re.sub(spelling, said, word)
    return word


def test_form() -> None:
    assert len(WORDS) == 2**WORD_BITS == 2048
    assert list(WORDS) == sorted(set(WORDS))
    assert all(re.fullmatch(r"[a-z]{3,8}", word) for word in WORDS)


def test_no_two_begin_alike() -> None:
    assert len({word[:4] for word in WORDS}) == len(WORDS)


def test_no_two_sound_alike() -> None:
    assert sound("knight") == sound("nite") == "nAt"
    by_sound: dict[str, list[str]] = {}
    for word in WORDS:
        by_sound.setdefault(sound(word), []).append(word)
    assert [words for words in by_sound.values() if len(words) > 1] == []


def test_none_hurts() -> None:
    assert HURTFUL.isdisjoint(WORDS)


def test_the_list_is_what_codes_were_made_with() -> None:
    """A changed word changes what is agreed: that would be a new version of the protocol."""
    digest = hashlib.sha256("\n".join(WORDS).encode()).hexdigest()
    assert digest == "a96dff0bc82526a1c177613d4a35a90eb5a3d2dd2094a9a1103c2e035486f7f3"
