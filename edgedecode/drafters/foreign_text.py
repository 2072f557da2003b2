"""The text that a target and a draft model with another tokenizer agree on: each has its own tokens for it.

The context is read as text, which the draft's tokenizer encodes; what the draft model writes is text, which the
target's encodes. Drafts are verified, so that a bad choice here costs speed and never changes an answer.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import NamedTuple

from edgedecode.text.tokenizer import ANCHORS, TextTokens, Tokenizer

LONG, KEPT = 32, 8
"""Tokens of the target after which the text before the last `KEPT` is settled. More: each round encodes more text,
some microseconds a token; fewer: words are more often cut."""
MOST = 4 * LONG
"""Tokens of the target after which it is settled even if the draft's tokenizer would cut it elsewhere."""


class _Place(NamedTuple):
    """Where a token of the target begins: its index, that of its text, and whether it begins a word."""

    token: int
    text: int
    word: bool


class _Tail(NamedTuple):
    """The target's tokens since its last word began, their complete characters, and whether the run begins there."""

    ids: list[int]
    text: str
    begins: bool


class ForeignText:
    """One context, as the target's tokens and the draft's.

    The text after the last control token is a run. Of a long run all but the end is *settled*, at a place where both
    tokenizers also cut the text: its tokens stay as they are, and only the rest is encoded again in each round.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = TextTokens(target), TextTokens(draft)
        text, whole = draft.encode(ANCHORS[0]), draft.encode(ANCHORS[0], add_special=True)
        begins = next((place for place in range(len(whole)) if whole[place : place + len(text)] == text), 0)
        self._first = whole[:begins]
        """What the draft's tokenizer begins a text with: usually one token or none."""
        spaced = target.encode(f" {ANCHORS[0]}")
        self._marked = len(self.target.bytes_of(spaced)) > len(target.decode(spaced))
        """Whether the target's tokens of a text begin with a space that the text has not."""
        self._start()

    def _start(self) -> None:
        self._read: list[int] = []
        self._settled, self._rest = list(self._first), list[int]()
        """The draft's tokens: those that stay, and those of the text since."""
        self.same = 0
        """How many of the draft's tokens are surely those of the last call."""
        self._begin_run()

    def _begin_run(self) -> None:
        self._utf8 = getincrementaldecoder("utf-8")("replace")
        self._ids, self._text, self._begins = list[int](), "", True
        """The target's unsettled tokens of the run and their text, and whether it is the run's beginning."""
        self._places = [_Place(0, 0, True)]

    def begin(self, context: Sequence[int]) -> None:
        """Go on with this context, or start over if it does not continue what was read."""
        if list(context[: len(self._read)]) != self._read:
            self._start()
        self.same = 0

    def tokens(self, context: Sequence[int]) -> list[int]:
        """Return the draft's tokens of the context, which continues the last one; its last character may be missing."""
        if len(context) > len(self._read):
            settled, rest = len(self._settled), self._rest
            for token in context[len(self._read) :]:
                self._add(token)
            self._read += context[len(self._read) :]
            self._rest = self.draft.of(self._text, begins=self._begins)
            self._settle()
            tokens = self._settled + self._rest
            self.same = settled
            for one, other in zip(rest, tokens[settled:], strict=False):
                if one != other:
                    break
                self.same += 1
        return self._settled + self._rest

    @property
    def held(self) -> bytes:
        """The part of a character that the context ends with."""
        return self._utf8.getstate()[0]

    def proposed(self, drafted: bytes, more: bytes = b"") -> list[int]:
        """Return the target's tokens of a drafted text, as far as they end in it.

        more: how it would go on, which decides where its last word ends.
        """
        text, tail, held = _complete(drafted + more), self._tail, len(self.held)
        whole = self.target.of(tail.text + text, begins=tail.begins)
        if whole[: len(tail.ids)] == tail.ids:
            found = whole[len(tail.ids) :]
        elif held:
            return []
        else:  # as after a word that the target has begun with other tokens
            found = self.target.of(text, begins=False)
        left, tokens = len(drafted) - held, list[int]()
        for token in found:
            left -= len(self.target.tokenizer.token_bytes(token))
            if left < 0:
                break
            tokens.append(token)
        return tokens

    @property
    def _tail(self) -> _Tail:
        last = next(each for each in reversed(self._places) if each.word)
        return _Tail(self._ids[last.token :], self._text[last.text :], self._begins and last.token == 0)

    def _add(self, token: int) -> None:
        if token in self.target.tokenizer.added_ids:
            self._add_control(token)
            return
        data, whole = self.target.tokenizer.token_bytes(token), not self.held
        if self._begins and not self._ids and self._marked:
            data = data.removeprefix(b" ")
        text = self._utf8.decode(data)
        if whole and text:
            self._places.append(_Place(len(self._ids), len(self._text), text[0].isspace() and not text.isspace()))
        self._ids.append(token)
        self._text += text

    def _add_control(self, token: int) -> None:
        """End the run at an added token. The draft reads its own of the same name, or an ordinary one's text."""
        self._settled += self.draft.of(self._text, begins=self._begins)
        spelled = self.target.tokenizer.token_text(token) or ""
        own = self.draft.tokenizer.token_to_id(spelled)
        if own in self.draft.tokenizer.added_ids:
            if self._settled != [own]:  # which the draft's tokenizer also begins a text with
                self._settled.append(own)
        elif token not in self.target.tokenizer.special_ids:
            self._settled += self.draft.of(spelled, begins=False)
        self._begin_run()

    def _settle(self) -> None:
        """Settle the text before a place where the draft's tokenizer cuts it too, whatever comes next."""
        if len(self._ids) < LONG:
            return
        last = len(self._ids) - KEPT
        places = [each for each in self._places if 0 < each.token <= last]
        for place in sorted(places, key=lambda each: (each.word, each.token), reverse=True)[:2]:
            head = self.draft.of(self._text[: place.text], begins=self._begins)
            if self._rest[: len(head)] == head or len(self._ids) > MOST:
                self._settled += head
                self._ids, self._text, self._begins = self._ids[place.token :], self._text[place.text :], False
                self._rest = self.draft.of(self._text, begins=False)
                later = (each for each in self._places if each.token > place.token)
                moved = [_Place(each.token - place.token, each.text - place.text, each.word) for each in later]
                self._places = [_Place(0, 0, True), *moved]
                return


def _complete(data: bytes) -> str:
    """Return the text up to the first byte that is not of a complete character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
