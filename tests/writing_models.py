"""Tokenizers of different families, and models that write a story in the tokens of any of them, with mistakes."""

import random
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from edgedecode.arrays import FloatArray
from edgedecode.sampling.counter_rng import mixed
from edgedecode.testing import TableModel, TableState
from edgedecode.text.tokenizer import TextTokens, Tokenizer

STORY = (
    "The quick brown fox 🦊🦊 doesn't jump over 12345 lazy dogs — naïve, isn't it?\n\n"
    "def f(x):\n    return {x: [1, 2.5]}  # 你好，世界! 日本語のテキスト\n"
    "\t\tif x  and   y: print('<|end|> </s> <s>')\n"
    'Zwölf Boxkämpfer 👩‍👩‍👧 jagen Viktor quer über den großen Sylter Deich… "Über" e\u0301galité ﬁn ﷺ.\n'
    "한국어 문장입니다. Привет, мир! 12 + 30 = 42; the end, the fox, the dogs and the lazy text.\n"
)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def random_tokenizer(chance: random.Random) -> Tokenizer:
    """Return a byte-level BPE, or one like SentencePiece's with byte fallback, trained on a part of the story."""
    parts = chance.sample(STORY.split(" "), 60)
    lines = [" ".join(parts[start : start + 6]) for start in range(0, 60, 6)]
    size = chance.choice((270, 320, 420))
    inner = tokenizers.Tokenizer(models.BPE())
    if chance.random() < 0.5:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=chance.random() < 0.7)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if chance.random() < 0.5 else []
        inner.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        inner.train_from_iterator(lines, trainer)
    else:
        inner.model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        marks = [normalizers.Prepend("▁")] if chance.random() < 0.7 else []
        inner.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
        strips = [decoders.Strip(" ", 1, 0)] if marks else []
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strips]
        )
        trainer = trainers.BpeTrainer(vocab_size=size + 100, special_tokens=["<unk>", *BYTES], show_progress=False)
        inner.train_from_iterator(lines, trainer)
        inner = _without_special_bytes(inner)
    inner.add_special_tokens(["<|end|>", *(["<s>", "</s>"] if chance.random() < 0.5 else [])])
    return Tokenizer(inner)


def _without_special_bytes(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer with byte tokens as ordinary ones, which the trainer makes special."""
    import json

    state = json.loads(inner.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] == "<unk>"]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


class WritingModel(TableModel):
    """Continues the story from where the last bytes of the context are in it, in its tokenizer's own tokens.

    mistakes: how often the likeliest token is another one, by the place and the seed.
    """

    def __init__(self, tokenizer: Tokenizer, *, seed: int, mistakes: float, context: int = 512) -> None:
        size = tokenizer.size
        super().__init__(tuple(np.zeros((each, size + 2), np.float32) for each in (size, size, 7)), context=context)
        self._tokenizer, self._seed, self._mistakes = tokenizer, seed, mistakes
        self._story = STORY.encode()
        ids, place = TextTokens(tokenizer).of(STORY, begins=False), 0
        self._next: dict[int, int] = {}
        for id in ids:
            self._next[place] = id
            place += len(tokenizer.token_bytes(id))
        self._bytes = [tokenizer.token_bytes(id) for id in range(size)]

    def _row(self, state: TableState, index: int) -> FloatArray:
        path = [index]
        while (node := state.parents[path[-1]]) >= 0:
            path.append(node)
        return self.row_after([*state.tokens, *(state.rows[each] for each in reversed(path))])

    def row_after(self, tokens: Sequence[int]) -> FloatArray:
        text = b"".join(self._bytes[token] for token in tokens[-40:] if token < len(self._bytes))
        place = next((at + len(text[-n:]) for n in (12, 6, 3, 1) if (at := self._story.find(text[-n:])) >= 0), 0)
        place %= len(self._story)
        row = np.zeros(self.card.rows, np.float32)
        row[len(self._bytes) :] = 50.0  # padding that would win
        row[self._continuing(place)] = 8.0
        noise = mixed(mixed(self._seed) + place + 1000 * (len(tokens) % 5))
        row[noise % len(self._bytes)] += 10.0 if noise % 1000 < 1000 * self._mistakes else 4.0
        return row

    def _continuing(self, place: int) -> int:
        if place in self._next:
            return self._next[place]
        rest = self._story[place : place + 24]
        return max(
            range(len(self._bytes)), key=lambda id: len(self._bytes[id]) if rest.startswith(self._bytes[id]) else 0
        )
