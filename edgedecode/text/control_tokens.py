"""Keep the text of messages from spelling control tokens: only the chat template writes them.

Before rendering, each character of a message that a control token could begin with is replaced by a stand-in from
Unicode's private area. Whatever the template does with the message (trim, split, join), no control token can come of
it. The rendered text then has two forms: as it reads, and shielded, in which only the template's tokens are found.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import tokenizers

_PRIVATE = range(0xE000, 0xF900)
_MARKER = re.compile(r"<\|.*\|>|</?s>", re.DOTALL)
"""Spelling of a control token even where the tokenizer's file does not flag it special, as Phi-3's </s>."""
_TAG = re.compile(r"</?(\w+)>")


class Rendered(str):
    """The text of a conversation. shielded: the same with stand-ins for some characters of messages."""

    shielded: str

    def __new__(cls, text: str, shielded: str) -> "Rendered":
        self = super().__new__(cls, text)
        self.shielded = shielded
        return self


def rest_of(text: str, start: int) -> str:
    """Return the text from a position on, still shielded if it was."""
    return Rendered(text[start:], text.shielded[start:]) if isinstance(text, Rendered) else text[start:]


def joined(text: str, more: str) -> str:
    """Return two texts as one, shielded where they were."""
    parts = [each.shielded if isinstance(each, Rendered) else each for each in (text, more)]
    whole, shielded = f"{text}{more}", "".join(parts)
    return whole if whole == shielded else Rendered(whole, shielded)


@dataclass(frozen=True, slots=True)
class Shield:
    """Replaces characters of one conversation's messages. stand_ins: the stand-in of each character.

    theirs, own: what is searched in the text of others and in the model's own, which may spell `<think>`.
    """

    stand_ins: dict[str, str]
    theirs: re.Pattern[str]
    own: re.Pattern[str]

    def over(self, text: str, *, role: str) -> str:
        """Return a text of a message of this role with stand-ins."""
        pattern = self.own if role == "assistant" else self.theirs
        return pattern.sub(lambda found: self.stand_ins.get(found[0], found[0]), text)

    def lifted(self, text: str) -> str:
        """Return a rendered text in both forms."""
        for stand_in in self.stand_ins.values():
            text = text.replace(_escaped(stand_in), stand_in)  # a template may write JSON with escapes
        plain = text.translate({ord(stand_in): character for character, stand_in in self.stand_ins.items()})
        return text if plain == text else Rendered(plain, text)


class ControlTokens:
    """The control tokens of a tokenizer: those flagged special, `<|...|>`, and tags that the template's source has.

    `texts` are their names, `tags` the names of tags that the model's own text may spell.
    """

    def __init__(self, inner: tokenizers.Tokenizer, source: str) -> None:
        """inner: must not change afterwards. source: the chat template's text."""
        self._inner = inner
        self._added = inner.get_added_tokens_decoder()
        tags = {tag for name in _TAG.findall(source) for tag in (f"<{name}>", f"</{name}>")}
        control = [
            token
            for token in self._added.values()
            if token.content.strip() and (token.special or token.content in tags or _MARKER.fullmatch(token.content))
        ]
        self.texts = {token.content for token in control}
        ordinary = {token.content for token in self._added.values()} - self.texts
        self._found = _any_of(self.texts)
        self._normalizer = inner.normalizer if any(token.normalized for token in control) else None
        self._keys = {_key(each) for text in self.texts for each in (text, self._normalized(text)) if each.strip()}
        self._ordinary = [text for text in ordinary if self._keys.intersection(text)]
        special = {token.content for token in control if token.special}
        self.tags = {text for text in tags - special if not _MARKER.fullmatch(text)}
        self._own = [text for text in self.tags if self._keys.intersection(text)]

    def shield(self, texts: Iterable[str]) -> Shield | None:
        """Return what shields a conversation of these texts; None: no control token can come of them."""
        every = "\0".join(texts)
        keys = sorted({key for key in self._keys if key in every} | self._variants(every))
        if not keys:
            return None
        free = (chr(code) for code in _PRIVATE if chr(code) not in every and _escaped(chr(code)) not in every)
        patterns = (_any_of([*kept, *keys]) for kept in (self._ordinary, [*self._ordinary, *self._own]))
        return Shield(dict(zip(keys, islice(free, len(keys)), strict=True)), *patterns)

    def ids(self, text: Rendered) -> list[int]:
        """Return the tokens of a rendered conversation: control tokens where the template wrote them, nowhere else."""
        if self._normalizer is None and self._places(text) == self._places(text.shielded):
            return self._inner.encode(text, add_special_tokens=False).ids
        encoded = self._inner.encode(text.shielded, add_special_tokens=False)
        ids, start, waiting = list[int](), 0, list[int]()
        for id, (first, end) in zip(encoded.ids, encoded.offsets, strict=True):
            if id not in self._added:
                waiting.append(id)
                continue
            ids += [*self._stretch(text, start, first, waiting), id]
            start, waiting = end, []
        return ids + self._stretch(text, start, len(text), waiting)

    def _stretch(self, text: Rendered, start: int, end: int, ids: list[int]) -> list[int]:
        """Return the tokens between two added ones. ids: those of the shielded text."""
        if text.shielded[start:end] == text[start:end]:
            return ids
        before = "." if start else ""  # pre-tokenizers that mark the first word only see that others come before it
        pieces = tokenizers.PreTokenizedString(before + text[start:end])
        pieces.split(lambda _, piece: [piece[len(before) :]])
        if (normalizer := self._inner.normalizer) is not None:
            pieces.normalize(normalizer.normalize)
        if (words := self._inner.pre_tokenizer) is not None:
            words.pre_tokenize(pieces)
        return [id for word, *_ in pieces.get_splits() for id in self._word(word)]

    def _word(self, word: str) -> Iterator[int]:
        """Yield the tokens of a word, which is cut where the model's own vocabulary spells a control token."""
        while word:
            tokens = self._inner.model.tokenize(word)
            spelled = (word.find(token.value) for token in tokens if token.value in self.texts and len(token.value) > 1)
            cut = next((place + 1 for place in spelled if place >= 0), len(word))
            if cut == len(word):
                yield from (token.id for token in tokens)
            else:
                yield from self._word(word[:cut])
            word = word[cut:]

    def _places(self, text: str) -> list[tuple[int, str]]:
        return [(found.start(), found[0]) for found in self._found.finditer(text)]

    def _variants(self, text: str) -> set[str]:
        """Return the characters of a text that the normalizer turns into a key, such as the full-width <."""
        if self._normalizer is None:
            return set()
        return {each for each in {*text} if not each.isspace() and self._keys.intersection(self._normalized(each))}

    def _normalized(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))


def _key(text: str) -> str:
    """Return the character of a control token that is replaced in messages: no letter, if there is another one."""
    rare: Callable[[str], bool] = lambda each: not each.isalnum() and not each.isspace()  # noqa: E731
    return next(filter(rare, text), None) or text.strip()[:1]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of the texts, the longest first; of none, one that never matches."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"
