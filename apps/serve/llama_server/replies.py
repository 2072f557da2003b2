"""llama-server's replies: an object for each answer, whole or as it is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode import FinishReason, SamplingOptions
from edgedecode.decoding.stats import Stats

from ..errors.forms import ErrorDetails, LlamaError
from ..logprobs import Entry
from ..replies import Answered, Event, Reply, Written, timings
from ..requests.asked import Asked
from ..requests.tools import Call


@dataclass(slots=True)
class LlamaReply(Reply):
    """The reply of /completion and /infill."""

    asked: Asked
    model: str
    _evaluated: int = 0
    """Tokens of the prompt of the answer that is being written."""
    _predicted: int = 0
    """Its tokens so far."""

    def whole(self, answers: Sequence[Answered]) -> Event | list[Event]:
        """Return an answer, or a list of several."""
        found = [self._end(number, each, each.text) for number, each in enumerate(answers)]
        return found[0] if len(found) == 1 else found

    def begins(self, number: int, stats: Stats) -> list[Event]:
        self._evaluated, self._predicted = stats.prompt_tokens, 0
        return []

    def writes(self, number: int, written: Written) -> list[Event]:
        self._predicted += len(written.tokens)
        figures = {"tokens_predicted": self._predicted, "tokens_evaluated": self._evaluated}
        part = self._part(number, written.text, written.tokens, written.logprobs)
        return [part | figures | {"stop": False}]

    def ends(self, number: int, answer: Answered, calls: Sequence[Call]) -> list[Event]:
        return [self._end(number, answer, "")]

    def fails(self, message: str) -> list[Event]:
        return [{"error": LlamaError.of(500, ErrorDetails(message, "server_error")).error}]

    def _part(self, number: int, text: str, tokens: Sequence[int], logprobs: Sequence[Entry]) -> dict[str, object]:
        returned = [*tokens] if self.asked.returns_tokens or self.asked.stream else []
        found: dict[str, object] = {"index": number, "content": text, "tokens": returned, "id_slot": 0}
        return found | ({"completion_probabilities": [_logprob(each) for each in logprobs]} if logprobs else {})

    def _end(self, number: int, answer: Answered, text: str) -> Event:
        """Return what tells how an answer ended. text: of it, what was not sent yet."""
        stats, asked = answer.stats, self.asked
        ended = "word" if stats.stop_string else "eos"
        prompt = asked.prompt(number)
        return self._part(number, text, answer.tokens, answer.logprobs) | {
            "stop": True,
            "model": self.model,
            "tokens_predicted": stats.tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_tokens,
            "generation_settings": _settings_of(asked),
            "prompt": prompt if isinstance(prompt, str) else [*prompt],
            "has_new_line": "\n" in answer.text,
            "truncated": stats.context_full,
            "stop_type": "limit" if answer.reason is FinishReason.LENGTH else ended,
            "stopping_word": stats.stop_string,
            "timings": timings([stats]),
        }


def generation_settings(sampling: SamplingOptions) -> dict[str, object]:
    """Return how tokens are chosen, under llama-server's names."""
    found: dict[str, object] = {**sampling.as_dict()}
    return found | {"repeat_penalty": found["repetition_penalty"], "repeat_last_n": sampling.penalty_window or -1}


def _settings_of(asked: Asked) -> dict[str, object]:
    return generation_settings(asked.sampling) | {
        "seed": -1 if asked.seed is None else asked.seed,
        "n_predict": -1 if asked.max_tokens is None else asked.max_tokens,
        "n_probs": asked.top_logprobs or 0,
        "stop": [*asked.stop],
        "stream": asked.stream,
        "ignore_eos": asked.ignore_eos,
    }


def _logprob(entry: Entry) -> dict[str, object]:
    found: dict[str, object] = {
        "id": entry.id,
        "token": entry.token,
        "bytes": [*entry.data],
        "logprob": entry.logprob,
    }
    return found | ({"top_logprobs": [_logprob(each) for each in entry.top]} if entry.top else {})
