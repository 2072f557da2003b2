"""Transcript: generated ids are kept where the template allows it, otherwise everything is encoded again."""

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from edgedecode.errors import InputError
from edgedecode.testing import CHATML, SPECIAL_TOKENS, byte_tokenizer
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.text.transcript import Transcript, Turn

ENDS = frozenset({2})


def merging_tokenizer() -> Tokenizer:
    """Return a byte tokenizer with ChatML's special tokens and a merge: "ab" is one id; a model may generate a, b."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet, "ab", "abab"])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("ab", "ab")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return Tokenizer(inner, chat_template=ChatTemplate(CHATML))


def reply(transcript: Transcript, prompt: str, ids: list[int], *, shown: str) -> list[int]:
    """Run one turn whose reply is `ids`."""
    transcript.begin_reply(transcript.open_turn(Message("user", prompt)))
    transcript.tokens += ids
    transcript.end_reply(shown, ends=ENDS)
    return transcript.tokens


@pytest.mark.parametrize("ended", [True, False])
def test_transcript_keeps_generated_ids_where_encoding_gives_others(ended: bool) -> None:
    tokenizer = merging_tokenizer()
    a, b, ab = (tokenizer.token_to_id(token) for token in ("a", "b", "ab"))
    assert a is not None
    assert b is not None
    assert tokenizer.encode("ab") == [ab]
    transcript = Transcript(tokenizer)
    generated = [a, b, a, b] + [2] * ended
    before = list(reply(transcript, "hello", generated, shown="abab"))
    after = transcript.open_turn(Message("user", "again")).tokens
    assert after[: len(before)] == before
    fresh = Transcript(tokenizer, transcript.messages).open_turn(Message("user", "again")).tokens
    assert fresh != after  # a fresh session encodes the text again
    assert tokenizer.decode(fresh, skip_special=False) == tokenizer.decode(after, skip_special=False)


def test_transcript_leaves_out_an_end_token_the_template_does_not_print() -> None:
    tokenizer = merging_tokenizer()
    a, b = (tokenizer.token_to_id(token) for token in ("a", "b"))
    assert a is not None
    assert b is not None
    transcript = Transcript(tokenizer)
    transcript.begin_reply(transcript.open_turn(Message("user", "hello")))
    transcript.tokens += [a, b, 0]
    transcript.end_reply("ab", ends=frozenset({0, 2}))
    after = transcript.open_turn(Message("user", "again")).tokens
    assert after[: len(transcript.tokens)] == [*transcript.tokens[:-1], 2]


def test_transcript_encodes_a_history_that_the_template_rewrites_again() -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last else m.content | upper }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = ChatTemplate(source)
    transcript = Transcript(tokenizer)
    reply(transcript, "hello", [*tokenizer.encode("hi"), 2], shown="hi")
    text = tokenizer.decode(transcript.open_turn(Message("user", "again")).tokens, skip_special=False)
    assert "HELLO" in text
    assert "HI" in text
    assert "again" in text


def test_transcript_is_unchanged_when_the_template_refuses() -> None:
    tokenizer = byte_tokenizer()
    refusing = "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}<|im_start|>"
    tokenizer.chat_template = ChatTemplate(refusing)
    transcript = Transcript(tokenizer, [Message("user", "a")])
    with pytest.raises(InputError, match="one message only"):
        transcript.open_turn(Message("user", "b"))
    with pytest.raises(InputError, match="one message only"):
        transcript.begin_reply(Turn(transcript.messages, Message("user", "b"), [1]))
    assert [message.content for message in transcript.messages] == ["a"]
    assert transcript.tokens == []


def test_start_over_encodes_again_but_keeps_the_tokens() -> None:
    tokenizer = merging_tokenizer()
    a, b = (tokenizer.token_to_id(token) for token in ("a", "b"))
    assert a is not None
    assert b is not None
    transcript = Transcript(tokenizer)
    before = list(reply(transcript, "hello", [a, b, 2], shown="ab"))
    transcript.start_over(transcript.messages)
    assert transcript.tokens == before
    assert transcript.open_turn(Message("user", "again")).tokens[: len(before)] != before
