"""Names of tenants, users and threads: accepted as they are, or refused with the spelling that would do.

Never changes a name: no folding of case, no sanitising, no silent normalisation. Two names are the same when their
code points are, and at no other time. Pure.

Letters, digits and marks are Unicode's general categories L*, Nd and M* (UAX 44). Some of those draw nothing (UAX 44,
Default_Ignorable_Code_Point); they would make two names that look alike, so they are refused with the zero-width ones.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from ringfence.host.kernel.errors import NameInvalid

# Invisible though letters or marks: combining grapheme joiner, Hangul and Khmer fillers, variation selectors.
_INVISIBLE = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)


@dataclass(frozen=True, slots=True)
class _Rule:
    noun: str
    longest: int  # code points
    extra: str  # what is allowed beside letters, digits and marks
    first: str  # of `extra`, what a name may start with


_TENANT = _Rule("tenant", 64, "._-", "")
_USER = _Rule("user", 64, "._-@+", "")
_THREAD = _Rule("thread", 128, "._-@+#:", "#")


def check_tenant_name(name: str) -> str:
    """The name itself. NameInvalid: 1-64 letters, digits, marks or `. _ -`; starts with a letter or digit."""
    return _check(name, _TENANT)


def check_user_name(name: str) -> str:
    """The name itself. NameInvalid: 1-64 letters, digits, marks or `. _ - @ +`; starts with a letter or digit."""
    return _check(name, _USER)


def check_thread_name(name: str) -> str:
    """The name itself. NameInvalid: 1-128 letters, digits, marks or `. _ - @ + # :`; starts with a letter, digit, #."""
    return _check(name, _THREAD)


def _check(name: str, rule: _Rule) -> str:
    if not name:
        raise _refusal(rule, name, "is empty")
    if len(name) > rule.longest:
        raise _refusal(rule, name, f"has {len(name)} characters; the limit is {rule.longest}", "take a shorter one")
    for character in name:
        if problem := _problem(character, rule):
            raise _refusal(rule, name, problem)
    if not (_is_letter_or_digit(name[0]) or name[0] in rule.first):
        raise _refusal(rule, name, f"starts with {_show(name[0])}", "start it with a letter or a digit")
    if name.endswith("."):
        raise _refusal(rule, name, "ends with a dot", _try(name.rstrip("."), rule))
    composed = unicodedata.normalize("NFC", name)
    if composed != name:
        raise _refusal(rule, name, "is not in Unicode form NFC", f"write it as {composed!r} ({_points(composed)})")
    return name


def _is_letter_or_digit(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "L" or category == "Nd"


def _problem(character: str, rule: _Rule) -> str:
    """Why the character may not be in a name, or ''."""
    code = ord(character)
    if any(low <= code <= high for low, high in _INVISIBLE):
        return f"contains the invisible character {_show(character)}"
    if character in rule.extra or _is_letter_or_digit(character) or unicodedata.category(character)[0] == "M":
        return ""
    kind = {"Cc": "control", "Cf": "invisible or direction", "Cs": "surrogate"}.get(unicodedata.category(character), "")
    return f"contains the {kind + ' ' if kind else ''}character {_show(character)}"


def _refusal(rule: _Rule, name: str, problem: str, remedy: str = "") -> NameInvalid:
    allowed = f"letters, digits and {' '.join(rule.extra)} are allowed, 1 to {rule.longest} characters"
    shown = ascii(name if len(name) <= rule.longest else name[: rule.longest])
    return NameInvalid(
        f"the {rule.noun} name {shown} {problem}", remedy=f"{remedy or 'choose another name'}; {allowed}"
    )


def _try(shorter: str, rule: _Rule) -> str:
    """The proposal of `shorter` when it would be accepted."""
    try:
        return f"write it as {_check(shorter, rule)!r}"
    except NameInvalid:
        return ""


def _show(character: str) -> str:
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'without a name')})"


def _points(text: str) -> str:
    return " ".join(f"U+{ord(character):04X}" for character in text)
