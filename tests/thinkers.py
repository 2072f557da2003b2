"""Toy pairs whose models think: the byte tokenizer with Qwen 3's marks, and templates that open thoughts or do not."""

from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from edgedecode.pack.manifest import Generation
from edgedecode.pair import Pair
from edgedecode.testing import CHATML, byte_tokenizer, toy_pair, toy_tables
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer
from tests.toys import END, ToyRuntime, ascii_tables

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
START, CLOSE, CALL, CALL_END = range(259, 263)
"""Ids of the marks. The byte tokenizer has no token of two newlines."""
OPENED = CHATML + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}{# </think>\\n\\n #}"
"""Always opens a thought, as DeepSeek R1's."""
SWITCHED = CHATML + (
    "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
"""Lets the model begin its thought, or writes an empty one, as Qwen 3's."""
NEVER = -2000.0
ALWAYS = 5000.0


def thinking_tokenizer(template: str, *, special: bool = False) -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer().definition)
    inner.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in MARKS])
    return Tokenizer(inner, chat_template=ChatTemplate(template))


def thinker(
    template: str = OPENED,
    *,
    closing: float = NEVER,
    calling: float = NEVER,
    ending: float = 3.0,
    noise: float = 0.7,
    special: bool = False,
) -> Pair:
    """Return a pair that begins a thought where the template did not. closing, calling: the bonus of `</think>`, and
    of `<tool_call>` and its end; ending: that of the end token. special: the marks are special tokens."""
    tokenizer = thinking_tokenizer(template, special=special)
    target = tuple(each.copy() for each in ascii_tables(tokenizer, seed=0, ending=ending))
    target[2][:, START] += NEVER
    target[2][:, CLOSE] += closing
    target[2][:, [CALL, CALL_END]] += calling
    if template == SWITCHED:  # after the header's newline, so that the answer begins with the mark
        target[0][tokenizer.encode("\n")[0], START] += ALWAYS
    draft = toy_tables(tokenizer.size, seed=1000, scale=noise, near=target)
    base = toy_pair()
    manifest = replace(
        base.manifest, vocabulary_size=tokenizer.size, generation=Generation(end_token_ids=(END, 0), max_tokens=80)
    )
    runtime = ToyRuntime({"target": target, "draft": draft})
    return Pair(manifest, Path(), tokenizer=tokenizer, runtime=runtime, budget=base.budget)
