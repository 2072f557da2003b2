"""Completions that repeat their prompt with its log probabilities (`echo`), or consist of it (`max_tokens: 0`)."""

from collections.abc import Iterator
from math import nan

from edgedecode import Chunk, FinishReason, Session, TokenLogprob
from edgedecode.decoding.stats import Stats
from edgedecode.sessions.answer import Answer
from edgedecode.sessions.chunks import TARGET_SOURCE
from edgedecode.text.tokenizer import Tokenizer

from .requests.asked import Asked, Prompt


class Echo:
    """One answer of a request for the prompt; `Answer` is that of any other."""

    def __init__(self, session: Session, tokenizer: Tokenizer, asked: Asked, *, number: int) -> None:
        self._session, self._tokenizer, self._asked = session, tokenizer, asked
        self._prompt = asked.prompt(number)

    @property
    def stats(self) -> Stats:
        """The statistics so far."""
        return self._session.stats

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the prompt, then what follows it. Raises as `Session.score` and `Session.complete`."""
        asked, session = self._asked, self._session
        ends = asked.max_tokens == 0
        if ends or asked.top_logprobs is not None:
            logprobs = session.score(self._prompt, top_logprobs=asked.top_logprobs or 0)
            session.stats.prompt_tokens = len(logprobs)
        else:
            logprobs = []
        answer = None if ends else completed(session, asked, self._prompt)
        if asked.echo:
            yield self._echoed(logprobs if asked.top_logprobs is not None else [])
        if answer is None:
            yield Chunk("", (), TARGET_SOURCE, FinishReason.LENGTH)
            return
        for chunk in answer:
            if logprobs:
                answer.stats.cached_tokens = 0  # of what the prompt's scoring left
            yield chunk

    def stop(self) -> None:
        """Make it end after the current pass."""
        self._session.stop()

    def close(self) -> None:
        """Nothing holds its session: `Running` closes it."""

    def _echoed(self, logprobs: list[TokenLogprob | None]) -> Chunk:
        """Return the prompt as a chunk. The first token has no log probability, since nothing is before it."""
        prompt = self._prompt
        text = prompt if isinstance(prompt, str) else self._tokenizer.decode(list(prompt))
        scored = [TokenLogprob(self._session.tokens[0], nan) if each is None else each for each in logprobs]
        return Chunk(text, (), TARGET_SOURCE, logprobs=tuple(scored))


def completed(session: Session, asked: Asked, prompt: Prompt) -> Answer:
    """Return the answer that continues a prompt."""
    top, expected = asked.top_logprobs, asked.expected
    return session.complete(prompt, max_tokens=asked.max_tokens, stop=asked.stop, top_logprobs=top, expected=expected)
