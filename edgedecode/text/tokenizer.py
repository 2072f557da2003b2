"""A model's tokenizer: text to ids and back, and comparison of two tokenizers."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path

import tokenizers

from edgedecode.errors import EdgeDecodeError, InputError, ManifestError, stand_in

from .arrangement import Arranger, Sent
from .chat_template import NOTHING, PLAIN_TEMPLATE, ChatTemplate
from .control_tokens import ControlTokens, Rendered
from .messages import Message
from .token_text import Detokenizer, Pieces, component_steps
from .tokenizer_checks import LONGEST_TOKEN, check_file, check_growth

_CACHED_WORDS = 64
"""Words in the encoding cache: four times as many are 2 to 4% faster; the library's default, 10,000, can take 80 MB."""
_WORD_NBYTES = 9000
"""Upper bound of a cached word's memory."""
CACHE_NBYTES = _CACHED_WORDS * _WORD_NBYTES
"""Upper bound of the word cache's memory."""
ANCHORS = (".", "a", "\n")
"""Texts that stand for what comes before a text, so that its beginning is not taken for the beginning of all."""
PROBE = "Zwölf Boxkämpfer, 1234567 + 0.5 = x;\n\tif (a_b != \"c\") { return f(x)[0]; }  日本語 🙂 I'm  don't ﬁ"
"""Text on which tokenizers differ: digits, spaces, accents, code, a ligature that some normalize."""
_KEPT_TEXTS = 16
"""Texts whose tokens are remembered."""
_SAMPLE = "a B1 \n é 你 \U0001f999 \ufdfa"


class Tokenizer:
    """A Hugging Face `tokenizer.json` with its chat template (`PLAIN_TEMPLATE` if the pack has none). Thread-safe.

    `size` is the largest id plus one, added tokens included: model rows above it are padding. `added_ids` are the
    added tokens, `special_ids` those of them flagged special, `longest_token` the length of the longest token in
    characters, `growth` the factor by which the normalizer can lengthen a text.
    """

    __slots__ = (
        "_arranger",
        "_containing",
        "_control",
        "_digest",
        "_inner",
        "_pieces",
        "added_ids",
        "growth",
        "longest_token",
        "size",
        "special_ids",
    )

    def __init__(self, inner: tokenizers.Tokenizer, *, chat_template: ChatTemplate | None = None) -> None:
        """Take over `inner`, disabling the padding and truncation it may have been saved with.

        Raises ManifestError if its normalizer or decoder lengthens texts too much, or a token is too long.
        """
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._pieces = Pieces(inner)
        self._digest: str | None = None
        self._containing: dict[bytes, tuple[int, ...]] = {}
        self.chat_template = chat_template or ChatTemplate(PLAIN_TEMPLATE)
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.size: int = max(vocabulary.values(), default=-1) + 1
        self.longest_token: int = max(map(len, vocabulary), default=1)
        added = inner.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.growth = check_growth(component_steps(inner.normalizer))
        check_growth(component_steps(inner.decoder))
        if self.longest_token > LONGEST_TOKEN:
            raise ManifestError(
                f"the tokenizer has a token of {self.longest_token} characters: the limit is {LONGEST_TOKEN}"
            )
        if hasattr(inner.model, "_resize_cache"):
            inner.model._resize_cache(_CACHED_WORDS)
        self.special_ids = frozenset(id for id, token in added.items() if token.special)

    @classmethod
    def from_file(cls, path: Path, *, chat_template: ChatTemplate | None = None) -> "Tokenizer":
        """Read a `tokenizer.json`. Raises `ManifestError` if it is missing or invalid."""
        if not path.is_file():
            raise ManifestError(f"no tokenizer file {path}: a model folder needs its tokenizer.json")
        with _errors_as(
            ManifestError, f"{path} is not a tokenizer.json that tokenizers {tokenizers.__version__} can read"
        ):
            data = path.read_bytes()
            if other := stand_in(data[:64]):
                raise ManifestError(f"{path} {other}")
            check_file(data)
            inner = tokenizers.Tokenizer.from_buffer(data)
        del data
        with _errors_as(ManifestError, f"{path} is a tokenizer.json that does not work"):
            tokenizer = cls(inner, chat_template=chat_template)
            tokenizer.decode(tokenizer.encode(_SAMPLE))
        return tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        return self._arranger.template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate) -> None:
        self._arranger, self._control = Arranger(template), ControlTokens(self._inner, template.source)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return a text's ids; special tokens spelled out in it are recognized, in a rendered text the template's only.

        `add_special` also runs the file's post-processor, which usually adds the beginning-of-sequence token (chat
        templates print it themselves). Raises `InputError` for text that is not valid Unicode (lone surrogates).
        """
        with _errors_as(InputError, "cannot encode this text"):
            try:
                if isinstance(text, Rendered):
                    return self._control.ids(text)
                return self._inner.encode(text, add_special_tokens=add_special).ids
            except (TypeError, UnicodeError) as error:
                raise InputError(f"cannot encode this text: {_text_fault(text)}") from error

    def normalized(self, text: str) -> str:
        """Return the normalized text. Raises as `encode`."""
        if self._inner.normalizer is None:
            return text
        with _errors_as(InputError, "cannot encode this text"):
            return str(self._inner.normalizer.normalize_str(text))

    def render(
        self, messages: Sequence[Message], *, arguments: Mapping[str, object] = NOTHING, most_nbytes: int | None = None
    ) -> str:
        """Return the text of a conversation up to the assistant's header. arguments: variables of the template.

        `encode` finds no special token in it but the template's own. Messages that the template does not know are
        folded into others. Raises as `ChatTemplate.render`, and InputError if a message would be left out.
        """
        sent = [Sent(each.role, each.content, each.thought) for each in messages]
        texts = [text for each in sent for text in (each.content, each.thought)] + [*_texts(arguments)]
        if (shield := self._control.shield(texts)) is not None:
            sent = [each.changed(partial(shield.over, role=each.role)) for each in sent]
            change = partial(shield.over, role="user")
            arguments = {name: _changed(each, change) for name, each in arguments.items()}
        text = self._arranger.render(sent, arguments=arguments, most_nbytes=most_nbytes)
        return text if shield is None else shield.lifted(text)

    def without_controls(self, text: str, *, role: str = "user") -> str:
        """Return a text in which `encode` finds no special token, although it may spell some. role: who wrote it."""
        shield = self._control.shield([text])
        return text if shield is None else shield.lifted(shield.over(text, role=role))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of ids. Unknown ids add nothing, incomplete characters become U+FFFD. Raises InputError."""
        with _errors_as(InputError, "cannot decode these tokens"):
            try:
                return self._inner.decode(list(ids), skip_special_tokens=skip_special)
            except (OverflowError, TypeError) as error:
                raise InputError(f"cannot decode: the ids hold a value that is not a token id ({error})") from error

    def detokenizer(self, *, skip_special: bool = True, keep: Collection[str] = ()) -> Detokenizer:
        """Start a stream whose text equals `decode` of all its ids. keep: special tokens that it has nevertheless."""
        skip = self.special_ids - {self.token_to_id(each) for each in keep} if skip_special else frozenset[int]()
        return Detokenizer(self._pieces, skip=skip)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, or None."""
        try:
            return self._inner.token_to_id(token)
        except (TypeError, UnicodeError):
            return None

    def token_text(self, id: int) -> str | None:
        """Return the token of an id as the vocabulary spells it (not its text), or None."""
        return self._pieces.token(id)

    def token_bytes(self, id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds to a text after others, maybe a part of a character.

        Empty for special tokens and unknown ids.
        """
        return b"" if id in self.special_ids else self._pieces.own_bytes(id)

    def ids_containing(self, text: str) -> tuple[int, ...]:
        """Return the ids of tokens whose text contains this one; special tokens have none. The last ones are kept."""
        wanted = text.encode("utf-8", "surrogatepass")
        if wanted not in self._containing:
            if len(self._containing) == _KEPT_TEXTS:
                self._containing.clear()
            self._containing[wanted] = tuple(id for id in range(self.size) if wanted in self.token_bytes(id))
        return self._containing[wanted]

    def byte_ids(self) -> frozenset[int]:
        """Return the ids that stand for one byte each: with all 256, any text can be encoded."""
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        return frozenset(id for token, id in vocabulary.items() if self._pieces.is_single_byte(token))

    @property
    def cache_nbytes(self) -> int:
        """Upper bound of the word cache's memory."""
        return CACHE_NBYTES if hasattr(self._inner.model, "_resize_cache") else 0

    @property
    def definition(self) -> str:
        """The content of its `tokenizer.json`, for other libraries."""
        text: str = self._inner.to_str()
        return text

    def unspelled(self, ends: Collection[int]) -> str:
        """Return the definition with names that no text has for special tokens and the added ones among `ends`."""
        texts = {self.token_text(id) for id in self.special_ids | (self.added_ids & {*ends})}
        names = [re.escape(json.dumps(text, ensure_ascii=False)) for text in texts if text]
        named = re.sub(
            rf"(?<!\\)(?:{'|'.join(names) or '(?!)'})", lambda found: f'"\uffff{found[0][1:]}', self.definition
        )
        return re.sub(r'("content":"\uffff[^{}]*"special":)false', r"\1true", named)  # as Phi-3 flags its </s>

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that decides a text's ids; computed once, about a second for 150,000 tokens.

        Covers the sorted (token, id) vocabulary with added tokens, the model's type, merges and flags, the normalizer
        and the pre-tokenizer. Formatting, padding, truncation, post-processor and decoder are left out.
        """
        if self._digest is None:
            vocabulary = sorted(self._inner.get_vocab(with_added_tokens=True).items())
            identity = json.dumps([vocabulary, self._rules()], sort_keys=True, separators=(",", ":"))
            self._digest = hashlib.sha256(identity.encode()).hexdigest()
        return self._digest

    def first_difference(self, other: "Tokenizer") -> str | None:
        """Describe the first difference of two tokenizers, for an error message; None if they give the same ids."""
        if self.digest == other.digest:
            return None
        for id in range(max(self.size, other.size)):
            mine, theirs = self.token_text(id), other.token_text(id)
            if mine != theirs:
                return f"id {id} is {_quoted(mine)} in one and {_quoted(theirs)} in the other"
        rules, others = self._rules(), other._rules()
        return next(_rule_difference(name, rules[name], others[name]) for name in rules if rules[name] != others[name])

    def _rules(self) -> dict[str, list[object]]:
        """Return everything but the vocabulary that decides the tokens, as canonical lists to compare by item."""
        model: dict[str, object] = json.loads(self._inner.model.__getstate__())
        merges = model.pop("merges", [])
        assert isinstance(merges, list)
        if isinstance(model.get("vocab"), dict):  # Unigram's is a list, whose scores decide the tokens
            del model["vocab"]
        normalizer = component_steps(self._inner.normalizer)
        return {
            "model": [[name, value] for name, value in sorted(model.items()) if value not in (None, "")],
            "merges": [merge.split(" ") if isinstance(merge, str) else merge for merge in merges],
            "normalizer": list(normalizer),
            "pre-tokenizer": [
                {name: value for name, value in step.items() if name != "trim_offsets"}
                for step in component_steps(self._inner.pre_tokenizer)
            ],
            "added token": [
                [id, token.lstrip, token.rstrip, token.single_word, token.normalized and bool(normalizer)]
                for id, token in sorted(self._inner.get_added_tokens_decoder().items())
            ],
        }


class TextTokens:
    """A tokenizer for pieces of text, none of which becomes a control token that it may spell."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._heads = [(anchor, tokenizer.encode(anchor)) for anchor in ANCHORS]

    def of(self, text: str, *, begins: bool) -> list[int]:
        """Return a text's tokens. begins: whether nothing comes before it, so that a space mark may be added."""
        for anchor, head in () if begins else self._heads:
            ids = self._plain(anchor + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self._plain(text)

    def prompt(self, tokens: Sequence[int]) -> str:
        """Return a prompt's text, with its control tokens, but without what a tokenizer itself begins a text with."""
        first = self.tokenizer.encode("", add_special=True)
        start = len(first) if [*tokens[: len(first)]] == first else 0
        return self.tokenizer.decode(tokens[start:], skip_special=False)

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.tokenizer.token_bytes, ids))

    def change(self) -> str | None:
        """Return a text that the tokenizer changes, and into what; None: it keeps text as it is."""
        for word in PROBE.split(" "):
            found = self.bytes_of(self.of(f" {word}", begins=False)).decode("utf-8", "replace")
            if found != f" {word}":
                return f"{word!r} becomes {found.strip()!r}"
        return None

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(self.tokenizer.without_controls(text))


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a variable of a template."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for item in value.items() for each in item for text in _texts(each))
    elif isinstance(value, list | tuple):
        yield from (text for each in value for text in _texts(each))


def _changed(value: object, change: Callable[[str], str]) -> object:
    """Return a variable of a template with its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(name, change): _changed(each, change) for name, each in value.items()}
    return [_changed(each, change) for each in value] if isinstance(value, list | tuple) else value


@contextmanager
def _errors_as(kind: type[EdgeDecodeError], prefix: str) -> Iterator[None]:
    """Turn the library's exceptions into ours. Rust panics derive from BaseException only."""
    try:
        yield
    except (EdgeDecodeError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        if isinstance(error, EdgeDecodeError) and not isinstance(error, kind):
            raise kind(f"{prefix}: {error}") from error
        raise
    except BaseException as error:
        raise kind(f"{prefix}: {' '.join(str(error).split())[:300]}") from error


def _quoted(token: str | None) -> str:
    return "unused" if token is None else repr(token)


def _rule_difference(name: str, mine: list[object], theirs: list[object]) -> str:
    place, (one, two) = next((i, pair) for i, pair in enumerate(zip_longest(mine, theirs)) if pair[0] != pair[1])
    return f"the tokens are the same, but {name} {place} is {one!r} in one and {two!r} in the other"


def _text_fault(text: object) -> str:
    if not isinstance(text, str):
        return f"it is {type(text).__name__}, not a string"
    place = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    return "it is not valid Unicode" if place is None else f"character {place} is the lone surrogate {text[place]!r}"
