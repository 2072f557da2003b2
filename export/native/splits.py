"""Compile pre-tokenizers for the native library: regular expressions to programs over classes of characters.

The library has neither regular expressions nor Unicode's tables. A program takes characters by their class: all that
no set of the expressions tells apart are one class. Which characters a set has is asked of the `tokenizers` library,
so that both agree by construction.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import pre_tokenizers

from edgedecode.errors import ExportError

CODES = 0x110000
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a `ByteLevel` step with `use_regex` splits by."""
MARKED = "\u2581[^\u2581]*|[^\u2581]+"
"""What a `Metaspace` step with `split` splits by, behind its replacement of spaces."""
MOST_CLASSES = MOST_SETS = 64
RUN, EITHER, JUMP, AHEAD, NOT_AHEAD, MATCH = range(6)
WHOLE = 16
"""Added to RUN: what it took it keeps."""
_ASKED = np.array([*range(0xD800), *range(0xE000, 0x40000), 0x40000, *range(0xE0000, 0xE1001), 0xF0000])
"""Unassigned planes and private ones are alike. Surrogates are no characters."""
_FOLDED_TOGETHER = {"ss", "ff", "fi", "fl", "st"}
"""Letters of which one other character is the same without regard to case, such as ß."""
_TOKEN = re.compile(
    r"(?P<look>\(\?[=!])|(?P<open>\((?:\?i?:)?(?!\?))|(?P<close>\))|(?P<or>\|)"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]|\\[pP]\{\^?\w+\}|\\x\{\w+\}|\\[^pPxbBGzZAkg0-9]|[^\\\[\](){}|?*+^$])"
    r"|(?P<times>(?:[?*+]|\{\d+(?:,\d*)?\}))(?P<whole>\+?)",
    re.DOTALL,
)
_CHARACTER = re.compile(r"\\x\{\w+\}|\\[^pPxsSdDwWhHbBGzZAkg0-9]|[^\\]", re.DOTALL)
_PART = re.compile(
    rf"\\[pP]\{{\^?\w+\}}|\\[sSdDwWhH]|(?:{_CHARACTER.pattern})(?:-(?:{_CHARACTER.pattern}))?", re.DOTALL
)
Members = npt.NDArray[np.bool_]
Instruction = tuple[int, int, int, int]
"""Kind, set, and two numbers: the least and most of a run, or where to go."""


@dataclass(slots=True)
class Programs:
    """Expressions, compiled one after another. steps: the first instruction, and whether unmatched text is kept."""

    code: list[Instruction] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    sets: list[Members] = field(default_factory=list)

    def add(self, expression: str, *, keeps: bool = True) -> None:
        """Compile an expression. Raises ExportError for one that uses what the library lacks."""
        start = len(self.code)
        _Compiler(self, expression).compile()
        self.steps.append((start, int(keeps)))

    def add_members(self, members: Members, *, most: int) -> None:
        """Add a step that takes up to `most` characters of a set, 0: any number."""
        self.steps.append((len(self.code), 1))
        self.code += [(RUN, self.set_index(members), 1, most), (MATCH, 0, 0, 0)]

    def set_index(self, members: Members) -> int:
        """Return the index of a set of characters."""
        for index, other in enumerate(self.sets):
            if np.array_equal(members, other):
                return index
        self.sets.append(members)
        if len(self.sets) > MOST_SETS:
            raise ExportError(f"the pre-tokenizer has more than {MOST_SETS} sets of characters")
        return len(self.sets) - 1

    def classes(self) -> tuple[npt.NDArray[np.uint8], list[int]]:
        """Return every code point's class, and every set's classes as the bits of a number."""
        signatures = np.zeros(CODES, np.uint64)
        for bit, members in enumerate(self.sets):
            signatures |= members.astype(np.uint64) << np.uint64(bit)
        changes = np.flatnonzero(np.diff(signatures, prepend=~signatures[:1]))  # neighbours are mostly alike
        runs = np.unique(signatures[changes], return_inverse=True)[1]
        classes = np.repeat(runs, np.diff(changes, append=CODES))
        if classes.max() >= MOST_CLASSES:
            raise ExportError(f"the pre-tokenizer tells more than {MOST_CLASSES} kinds of characters apart")
        masks = [sum(1 << int(each) for each in np.unique(classes[members])) for members in self.sets]
        return classes.astype(np.uint8), masks


class _Compiler:
    """Reads one expression: alternatives of sequences of sets, repeated or not, and groups that may be left out."""

    def __init__(self, programs: Programs, expression: str) -> None:
        self.programs, self.expression = programs, expression
        self.code = programs.code
        self.tokens = [*self._tokens()]
        self.place = 0

    def compile(self) -> None:
        if not self._alternatives(ignore_case=False):
            raise self._refused("a match may be empty")
        if self.place < len(self.tokens):
            raise self._refused("a group ends that has not begun")
        self.code.append((MATCH, 0, 0, 0))

    def _tokens(self) -> Iterator[re.Match[str]]:
        place = 0
        while place < len(self.expression):
            found = _TOKEN.match(self.expression, place)
            if found is None:
                raise self._refused(f"{self.expression[place : place + 12]!r} at {place} is not known")
            yield found
            place = found.end()

    def _next(self, *kinds: str) -> re.Match[str] | None:
        if self.place < len(self.tokens) and self.tokens[self.place].lastgroup in kinds:
            self.place += 1
            return self.tokens[self.place - 1]
        return None

    def _alternatives(self, *, ignore_case: bool) -> bool:
        """Compile up to the end of the group. Returns whether a match has a character or more."""
        choice, ends, takes = len(self.code), list[int](), True
        while True:
            takes &= self._sequence(ignore_case=ignore_case)
            if self._next("or") is None:
                break
            ends.append(len(self.code) + 1)
            self.code.insert(choice, (EITHER, 0, len(self.code) + 2, 0))
            self._moved(choice)
            self.code.append((JUMP, 0, 0, 0))
            choice = len(self.code)
        for end in ends:
            self.code[end] = (JUMP, 0, len(self.code), 0)
        return takes

    def _moved(self, place: int) -> None:
        """Adjust the jumps behind an instruction that was inserted."""
        for at in range(place + 1, len(self.code)):
            kind, index, one, two = self.code[at]
            if kind in (EITHER, JUMP):
                self.code[at] = (kind, index, one + 1, two)

    def _sequence(self, *, ignore_case: bool) -> bool:
        takes, before = False, ""
        while self.place < len(self.tokens):
            if look := self._next("look"):
                self._look(negative=look[0] == "(?!", ignore_case=ignore_case)
            elif group := self._next("open"):
                takes |= self._group(ignore_case=ignore_case or "i" in group[0])
            elif one := self._next("set"):
                if ignore_case and (before + one[0]).lower() in _FOLDED_TOGETHER:
                    raise self._refused(f"{before + one[0]!r} without regard to case")
                before = one[0]
                least, most, whole = self._times()
                self.code.append((RUN | whole, self._set(one[0], ignore_case), least, most))
                takes |= least > 0
            else:
                break
        return takes

    def _group(self, *, ignore_case: bool) -> bool:
        start = len(self.code)
        takes = self._alternatives(ignore_case=ignore_case)
        if self._next("close") is None:
            raise self._refused("a group does not end")
        least, most, whole = self._times()
        if most != 1 or whole:
            raise self._refused("a group is repeated")
        if least == 0:
            self.code.insert(start, (EITHER, 0, len(self.code) + 1, 0))
            self._moved(start)
        return takes and least > 0

    def _look(self, *, negative: bool, ignore_case: bool) -> None:
        one = self._next("set")
        if one is None or self._next("close") is None:
            raise self._refused("it looks ahead at more than one character")
        self.code.append((NOT_AHEAD if negative else AHEAD, self._set(one[0], ignore_case), 0, 0))

    def _times(self) -> tuple[int, int, int]:
        """Return how often the last part comes: least, most (0: any number), and WHOLE if that is not taken back."""
        found = self._next("whole", "times")
        if found is None:
            return 1, 1, 0
        times, whole = found["times"], WHOLE if found["whole"] else 0
        if times in "?*+":
            return int(times == "+"), int(times == "?"), whole
        least, comma, most = times[1:-1].partition(",")
        if whole or (comma and most == "0") or times == "{0}":
            raise self._refused(f"the repetition {found[0]}")
        return int(least), int(most or 0) if comma else int(least), 0

    def _set(self, text: str, ignore_case: bool) -> int:
        if text[0] != "[":
            return self.programs.set_index(_part(text, ignore_case=ignore_case))
        members, negated = np.zeros(CODES, np.bool_), text.startswith("[^")
        inside = text[1 + negated : -1]
        parts = [found[0] for found in _PART.finditer(inside)]
        if "".join(parts) != inside or "&&" in inside or "[" in re.sub(r"\\.", "", inside):
            raise self._refused(f"the set {text}")
        for part in parts:
            members |= _part(part, ignore_case=ignore_case)
        return self.programs.set_index(~members if negated else members)

    def _refused(self, what: str) -> ExportError:
        return ExportError(f"the pre-tokenizer's expression {self.expression[:60]!r}: {what}")


def _part(text: str, *, ignore_case: bool) -> Members:
    """Return the characters of a part of a set: a property, a character, or a range of characters."""
    if re.fullmatch(r"\\[pP]\{\^?\w+\}|\\[sSdDwWhH]", text):
        negated = text[1].isupper() != ("^" in text)
        members = _property(text[:2].lower() + text[2:].replace("^", ""))
        return ~members if negated else members
    ends = [_character(found[0]) for found in _CHARACTER.finditer(text)]
    first, last = (ends[0], ends[-1])  # with "-" between them
    members = np.zeros(CODES, np.bool_)
    members[ord(first) : ord(last) + 1] = True
    if ignore_case:
        alike = _alike()
        for letter in map(chr, np.flatnonzero(members[:128])):
            pattern = pre_tokenizers.Split(tokenizers.Regex(f"(?i:{re.escape(letter)})"), "removed")
            members[[ord(each) for each in alike.get(letter.casefold(), "") if not pattern.pre_tokenize_str(each)]] = (
                True
            )
    return members


@lru_cache(maxsize=1)
def _alike() -> dict[str, str]:
    """Return the characters that are the same without regard to case, by what Python folds them to."""
    found: dict[str, str] = {}
    for each in filter(str.isalpha, _everything()):
        found[each.casefold()] = found.get(each.casefold(), "") + each
    return found


def _character(text: str) -> str:
    """Return what a character or its escape stands for."""
    if text.startswith(r"\x{"):
        return chr(int(text[3:-1], 16))
    return text if text[0] != "\\" else {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}.get(text[1], text[1])


@lru_cache(maxsize=16)
def _property(text: str) -> Members:
    """Return which characters have a property."""
    return ~_between(pre_tokenizers.Split(tokenizers.Regex(f"{text}+"), "removed").pre_tokenize_str(_everything()))


def _digits() -> Members:
    """Return what a `Digits` step takes for digits: every second of the parts, and not the first."""
    return _between(pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str(_everything())[1::2])


@lru_cache(maxsize=1)
def _everything() -> str:
    """Return every character of the planes that have some, and one of all others."""
    return "".join(map(chr, _ASKED))


def _between(words: Sequence[tuple[str, tuple[int, int]]]) -> Members:
    """Return which characters are in parts of `_everything`."""
    asked = np.zeros(len(_ASKED), np.bool_)
    for _, (start, end) in words:
        asked[start:end] = True
    members = np.zeros(CODES, np.bool_)
    members[_ASKED] = asked
    for first, end in ((0x40000, 0xE0000), (0xE1000, 0xF0000), (0xF0000, CODES)):
        members[first:end] = members[first]
    return members


def compile_steps(steps: Sequence[Mapping[str, object]], *, marked: bool, name: str) -> Programs:
    """Compile a pre-tokenizer's steps. marked: spaces are replaced before. Raises ExportError for one it cannot do."""
    programs = Programs()
    for place, step in enumerate(steps):
        match step:
            case {"type": "Split", "pattern": {"String": " "}} if marked:
                continue  # there are none (Gemma)
            case {"type": "Split", "behavior": "Isolated", "invert": False}:
                programs.add(_expression(step, name))
            case {"type": "Split", "behavior": "Removed", "invert": True}:
                programs.add(_expression(step, name), keeps=False)
            case {"type": "Digits"}:
                programs.add_members(_digits(), most=1 if step.get("individual_digits") else 0)
            case {"type": "ByteLevel", "add_prefix_space": False} if place == len(steps) - 1:
                if step.get("use_regex", True):
                    programs.add(GPT2)
            case {"type": "Metaspace"} if place == 0:
                if step.get("split", True):
                    programs.add(MARKED)
            case _:
                raise ExportError(f"{name} has the pre-tokenizer {step}, which the native library lacks")
    return programs


def _expression(step: Mapping[str, object], name: str) -> str:
    match step["pattern"]:
        case {"Regex": str(expression)}:
            return expression
        case {"String": str(text)} if text:
            return re.escape(text)
    raise ExportError(f"{name} splits text by {step['pattern']}, which the native library lacks")
