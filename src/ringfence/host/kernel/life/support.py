"""What may be in a support bundle: nothing but numbers, words of our own source, and names that are known to be ours. Pure.

Nothing is searched for secrets: a search finds what it was told of. A text is given out as the sentence of our source that it was made
from, its holes empty but for numbers that the sentence counts and ids that are known; what is no sentence of ours is left out
as a whole. Whatever a message, a file, an environment, a token or a value says is in a hole, or is no sentence of ours.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

LEFT_OUT = "(left out)"
HOLE = "…"
MOST = 2000  # characters of a text that are looked at
_LETTERS = string.ascii_letters + string.digits
_DEPTH = 3  # a sentence in a hole of a sentence: an error in a line of the log
_LEAST = 8  # letters of a sentence's own words: what has fewer is too little of a sentence to know it by
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*\d*(?:\.\d+)?([sdrfigxX%])")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,6})?", re.ASCII)
_FRAME = re.compile(r'\s*File "[^"]*?(ringfence/[a-z_/]+\.py)", line ([0-9]{1,6}), in ([A-Za-z_<>]{1,80})', re.ASCII)
_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}", re.ASCII)
_WORD = re.compile(r"[A-Za-z]{3,}", re.ASCII)
_LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words of ours, and between each two of them a hole; `counts`: which of the holes is for a number."""

    words: tuple[str, ...]
    counts: tuple[bool, ...]

    @property
    def known_by(self) -> str:
        """The longest of its words that no hole touches; "": there is none."""
        last = len(self.words) - 1
        found = [
            word
            for at, part in enumerate(self.words)
            for word in _WORD.findall(_touched(part, left=at > 0, right=at < last))
        ]
        return max(found, key=len, default="")

    def holes(self, text: str) -> list[str] | None:
        """What stands in them; None: the text is no such sentence."""
        first, last = self.words[0], self.words[-1]
        if len(self.words) == 1:
            return [] if text == first else None
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return None
        found, at, end = [], len(first), len(text) - len(last)
        for word in self.words[1:-1]:
            there = text.find(word, at, end)
            if there < 0:
                return None
            found.append(text[at:there])
            at = there + len(word)
        return [*found, text[at:end]]


class Words:
    """What our source says. `sources`: of each file its path from the package on (ringfence/...) and its text."""

    def __init__(self, sources: Iterable[tuple[str, str]], known: Collection[str] = ()) -> None:
        """`known`: ids that may be given out."""
        sentences: set[Sentence] = set()
        self._names: dict[str, set[str]] = {}
        self._texts: set[str] = set()
        for path, text in sources:
            tree = ast.parse(text)
            self._names[path] = {"<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}
            self._read(tree, path, sentences)
        self._by_word: dict[str, list[Sentence]] = {}
        for one in sorted(sentences, key=lambda one: (-sum(map(len, one.words)), one.words)):
            self._by_word.setdefault(one.known_by, []).append(one)
        self._known = frozenset(known)

    def _read(self, tree: ast.AST, path: str, sentences: set[Sentence]) -> None:
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._names[path].add(node.name)
            elif isinstance(node, ast.ClassDef):
                self._texts.add(node.name)
            elif isinstance(node, ast.JoinedStr):
                sentences.update(_sentence(*_joined(node)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                self._texts.add(node.value)
                sentences.update(_sentence(*_percent(node.value)))

    def text(self, given: str, depth: int = 0) -> str:
        """The sentence of ours that it is."""
        given = given.strip()
        if given in self._known:
            return given
        if len(given) > MOST or depth >= _DEPTH:
            return LEFT_OUT
        for word in dict.fromkeys(_WORD.findall(given)):
            for sentence in self._by_word.get(word, ()):
                if (holes := sentence.holes(given)) is not None:
                    filled = [self._hole(*each, depth) for each in zip(holes, sentence.counts, strict=True)]
                    return "".join(part for pair in zip(sentence.words, [*filled, ""], strict=True) for part in pair)
        return LEFT_OUT

    def _hole(self, given: str, counts: bool, depth: int) -> str:
        if counts and _NUMBER.fullmatch(given):
            return given
        said = self.text(given, depth + 1)
        return HOLE if said == LEFT_OUT else said

    def plain(self, given: Any) -> Any:
        """JSON of ours without what is not ours: numbers, truths, and texts as `text`. A key that is no word of ours goes too."""
        if isinstance(given, Mapping):
            return {str(key): self.plain(value) for key, value in given.items() if self.ours(str(key))}
        if isinstance(given, list | tuple):
            return [self.plain(each) for each in given]
        if isinstance(given, str):
            return moment(given) or (given if self.ours(given) or _VERSION.fullmatch(given) else self.text(given))
        return given if given is None or isinstance(given, bool | int | float) else LEFT_OUT

    def ours(self, word: str) -> bool:
        return word in self._texts or word in self._known

    # --- the log ----------------------------------------------------------------------------------------------------

    def line(self, given: str) -> dict[str, Any]:
        """A line of the log: {"at", "level", "part", "message", "error"} as far as each is known."""
        try:
            raw = json.loads(given)
        except (ValueError, RecursionError):
            return {"message": self.text(given)}
        if not isinstance(raw, dict):
            return {"message": LEFT_OUT}
        said: dict[str, Any] = {"at": moment(raw.get("at")) or LEFT_OUT}
        said["level"] = raw["level"] if str(raw.get("level")) in _LEVELS else LEFT_OUT
        part = raw.get("part")
        said["part"] = part if isinstance(part, str) and self.ours(part) else LEFT_OUT
        message = raw.get("message")
        said["message"] = self.text(message) if isinstance(message, str) else LEFT_OUT
        if isinstance(raw.get("error"), str):
            said["error"] = self._traceback(raw["error"])
        return said

    def _traceback(self, given: str) -> list[str]:
        found = []
        for line in given.splitlines()[-200:]:
            frame = _FRAME.match(line)
            if frame is not None:
                path, number, name = frame.groups()
                if name in self._names.get(path, ()):
                    found.append(f"{path}:{number} in {name}")
            elif line[:1].strip():
                kind = line.partition(":")[0].rpartition(".")[2]
                if kind in self._texts or isinstance(getattr(builtins, kind, None), type):
                    found.append(f"{kind}: {self.text(line.partition(':')[2])}")
        return found


def moment(given: object) -> str:
    """A time, spelled anew; "": it is none."""
    if not isinstance(given, str) or not 10 <= len(given) <= 40:
        return ""
    try:
        return datetime.fromisoformat(given).isoformat()
    except ValueError:
        return ""


def _touched(part: str, *, left: bool, right: bool) -> str:
    """Without a word that a hole may go on with."""
    if left:
        part = part.lstrip(_LETTERS)
    return part.rstrip(_LETTERS) if right else part


def _sentence(words: list[str], counts: list[bool]) -> list[Sentence]:
    """None, when it says too little."""
    letters = sum(char.isalpha() for word in words for char in word)
    found = Sentence(tuple(words), tuple(counts))
    return [found] if letters >= _LEAST and any(" " in word for word in words) and found.known_by else []


def _percent(text: str) -> tuple[list[str], list[bool]]:
    words, counts, at = [""], [], 0
    for found in _PERCENT.finditer(text):
        words[-1] += text[at : found.start()]
        at = found.end()
        if found[1] == "%":
            words[-1] += "%"
        else:
            words.append("")
            counts.append(found[1] in "dfigxX")
    words[-1] += text[at:]
    return words, counts


def _joined(node: ast.JoinedStr) -> tuple[list[str], list[bool]]:
    words, counts = [""], []
    for part in node.values:
        if isinstance(part, ast.Constant):
            words[-1] += str(part.value)
        else:
            words.append("")
            counts.append(isinstance(part, ast.FormattedValue) and part.format_spec is not None)
    return words, counts
