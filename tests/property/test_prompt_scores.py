"""Log probabilities of prompts on toy models: the model's own rows, whatever the session did before and drafts with."""

from threading import Thread

import numpy as np
import pytest

from edgedecode import CapabilityError, InputError, Pair, Session, SessionOptions, SwitchOptions, TokenLogprob
from edgedecode.errors import ContextExceeded
from edgedecode.memory.budget import Budget
from edgedecode.sessions import target_reading
from edgedecode.testing import TableModel
from tests.toys import ascii_pair, session_options

OPTIONS = [
    SessionOptions(drafter="none"),
    SessionOptions(),
    SessionOptions(drafter="tree", draft_max=8),
    session_options(switch=SwitchOptions(threshold=0.5)),
]
EACH = pytest.mark.parametrize("options", OPTIONS, ids=["plain", "scheduled", "tree", "switching"])


def assert_rows(pair: Pair, tokens: list[int], found: list[TokenLogprob | None], *, top: int) -> None:
    """Compare with the model's rows one by one, in float64."""
    assert isinstance(pair.target, TableModel)
    assert found[0] is None
    assert [each.token for each in found if each is not None] == tokens[1:]
    for place, each in enumerate(found[1:], 1):
        row = pair.target.logits_after(tokens[:place])[: pair.tokenizer.size].astype(np.float64)
        wanted = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert each.logprob == pytest.approx(wanted[each.token], abs=1e-4)
        assert [value for _, value in each.top] == pytest.approx(np.sort(wanted)[::-1][:top], abs=1e-4)


@EACH
def test_scores_are_those_of_the_models_rows(options: SessionOptions) -> None:
    with ascii_pair(seed=3) as pair, pair.session(options) as session:
        session.generate("Hello", max_tokens=20)  # its KV cache is not the prompt's
        for text, top in (("It was a dark and stormy night. " * 3, 2), ("It was a bright day.", 0), ("It", 20)):
            found = session.score(text, top_logprobs=top)
            tokens = list(session.tokens)
            assert tokens == pair.tokenizer.encode(text, add_special=True)
            assert_rows(pair, tokens, found, top=top)
            assert session.score(tokens, top_logprobs=top) == found


@EACH
def test_completing_a_scored_prompt_reuses_its_cache_and_changes_nothing(options: SessionOptions) -> None:
    with ascii_pair(seed=3) as pair, pair.session(options) as session, pair.session(options) as other:
        session.score("once upon a time")
        done = session.collect(session.complete("once upon a time", max_tokens=12))
        plain = other.collect(other.complete("once upon a time", max_tokens=12))
        assert done.tokens == plain.tokens
        assert (done.stats.cached_tokens, plain.stats.cached_tokens) == (done.stats.prompt_tokens - 1, 0)


def test_scoring_takes_no_seed_of_an_answer() -> None:
    with ascii_pair(seed=3) as pair, pair.session(SessionOptions(seed=4)) as session:
        session.score("hello")
        session.complete("hello", max_tokens=1)
        assert session.seed == 4


def test_a_prompt_may_fill_the_context() -> None:
    with ascii_pair(seed=3, context=64) as pair, pair.session() as session:
        tokens = [1 + place % 50 for place in range(session.context)]
        assert_rows(pair, tokens, session.score(tokens), top=0)
        with pytest.raises(ContextExceeded, match=f"too long: {len(tokens) + 1} tokens"):
            session.score([*tokens, 1])
        with pytest.raises(ContextExceeded, match=f"too long: {len(tokens)} tokens"):
            session.complete(tokens)
        assert session.score([5]) == [None]


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**40])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with ascii_pair() as pair, pair.session() as session:
        for call in (session.score, session.complete):
            with pytest.raises(InputError, match=f"token id {wrong} is not in the vocabulary: 0 to"):
                call([1, wrong])
            with pytest.raises(InputError, match="prompt is empty"):
                call([])
        with pytest.raises(InputError, match="0 to 20"):
            session.score("hello", top_logprobs=21)


def test_ids_are_completed_as_their_text() -> None:
    with ascii_pair() as pair, pair.session() as session, pair.session() as other:
        ids = pair.tokenizer.encode("once upon", add_special=True)
        found = session.collect(session.complete(ids, max_tokens=9))
        assert found.tokens == other.collect(other.complete("once upon", max_tokens=9)).tokens


def test_scoring_takes_the_planned_memory_where_the_budget_has_no_more() -> None:
    """A state plans the rows of a draft; a pass with more of them does not fit, and a pass with as many does."""
    widths: list[int] = []
    with ascii_pair(seed=3) as free, free.session() as session:
        tokens = [1 + place % 50 for place in range(100)]
        wanted = session.score(tokens)
    with ascii_pair(seed=3) as pair, pair.session(SessionOptions(draft_max=2)) as session:
        forward = TableModel.forward

        def limited(model: TableModel, *given: object, **named: object) -> object:
            widths.append(len(given[0]))  # type: ignore[arg-type]
            if widths[-1] > 3:
                Budget(1).reserve("logits", 2)
            return forward(model, *given, **named)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableModel, "forward", limited)
            assert session.score(tokens) == wanted
    assert widths == [target_reading._SCORED, *[3] * 33]


def test_another_call_stops_the_scoring() -> None:
    with ascii_pair(seed=3) as pair, pair.session() as session:
        tokens = [1 + place % 50 for place in range(400)]
        assert stopped_by(session, tokens, Session.reset) == "another call of this session stopped the scoring"
        assert session.generate("Hello", max_tokens=3).tokens
        assert stopped_by(session, tokens, Session.close) == "another call of this session stopped the scoring"


def stopped_by(session: Session, tokens: list[int], stop: object) -> str:
    """Score, call `stop` from another thread after the first pass, and return the beginning of the error."""
    forward, threads = TableModel.forward, list[Thread]()

    def stopping(model: TableModel, *given: object, **named: object) -> object:
        if not threads:
            threads.append(Thread(target=stop, args=(session,)))  # type: ignore[arg-type]
            threads[0].start()
            while (answer := session._running.answer) is not None and not answer.stopped:
                pass
        return forward(model, *given, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableModel, "forward", stopping)
        with pytest.raises(CapabilityError) as caught:
            session.score(tokens)
    threads[0].join()
    return str(caught.value).partition(":")[0]
