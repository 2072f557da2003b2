"""One conversation: options, streaming, stopping and limits. tests/property covers interruption."""

import pytest

from edgedecode.decoding.stats import FinishReason
from edgedecode.decoding.verify import Rule
from edgedecode.errors import BudgetExceeded, CapabilityError, ContextExceeded, InputError
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.options import SessionOptions, SwitchOptions, WhenFull
from edgedecode.pack.manifest import Generation
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.chunks import TARGET_SOURCE
from edgedecode.sessions.session import Session
from edgedecode.text.messages import Message
from tests.toys import END, ascii_pair, check_accounts, session_options

WARM = SamplingOptions(temperature=0.9, top_k=30)


def session(
    *, ending: float = 0.0, noise: float = 0.7, generation: Generation | None = None, **options: object
) -> Session:
    return ascii_pair(ending=ending, noise=noise, generation=generation).session(
        session_options(**{"seed": 3, **options})
    )


def plain_text(prompt: str, *, max_tokens: int, ending: float = 0.0, sampling: SamplingOptions | None = None) -> str:
    made = session(ending=ending, drafter="none", sampling=sampling)
    return made.generate(prompt, max_tokens=max_tokens).text


@pytest.mark.parametrize("sampling", [None, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["model", "suffix", "recycle", "none", None])
def test_generate_gives_the_same_text_with_every_drafter(drafter: str | None, sampling: SamplingOptions | None) -> None:
    made = session(drafter=drafter, draft_max=4, sampling=sampling)
    done = made.generate("hello hello hello", max_tokens=40)
    assert done.text == plain_text("hello hello hello", max_tokens=40, sampling=sampling)
    assert len(done.text) == len(done.tokens) == 40
    assert done.finish_reason is FinishReason.LENGTH
    check_accounts(done.stats, emitted=40)
    assert done.stats.mode == {None: "model", "none": "plain"}.get(drafter, drafter)
    if drafter in ("model", None):
        assert done.stats.accepted > 0


def test_stream_chunks_report_the_source_of_their_tokens() -> None:
    made = session(drafter="model", draft_max=4)
    chunks = list(made.stream("hello", max_tokens=30))
    drafted = [chunk for chunk in chunks if chunk.source == "model"]
    assert sum(len(chunk.tokens) for chunk in drafted) == made.stats.accepted > 0
    assert {chunk.source for chunk in chunks} == {"model", TARGET_SOURCE}
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason is FinishReason.LENGTH
    assert chunks[-1].tokens == ()
    assert tuple(token for chunk in chunks for token in chunk.tokens) == made.tokens[-30:]


def test_generate_stops_at_an_end_token_and_does_not_show_it() -> None:
    made = session(ending=7.0, noise=0.0, drafter="model", draft_max=6)
    done = made.generate("hello", max_tokens=200)
    assert done.finish_reason is FinishReason.STOP
    assert done.tokens[-1] == END
    assert len(done.text) == len(done.tokens) - 1
    assert done.stats.ended == 1
    assert done.stats.accepted > 0
    assert made.messages[-1] == Message("assistant", done.text)
    assert done.text == plain_text("hello", max_tokens=200, ending=7.0)


def test_session_defaults_come_from_the_pack() -> None:
    defaults = Generation(end_token_ids=(END,), sampling={"temperature": 0.9, "top_k": 30}, max_tokens=7)
    made = session(generation=defaults)
    assert made.sampling == WARM
    assert len(made.generate("hello").tokens) == 7
    assert session(generation=defaults, sampling=SamplingOptions()).sampling.greedy


def test_stop_string_completed_by_the_final_flush_stops() -> None:
    text = plain_text("hello", max_tokens=12)
    # The longer candidate is still open when the reply ends; then the shorter one inside it has matched.
    longer, shorter = text[9:] + "never", text[10:12]
    done = session().generate("hello", max_tokens=12, stop=[longer, shorter])
    assert done.text == text[:10]
    assert done.finish_reason is FinishReason.STOP


def test_context_limit_ends_a_reply_and_refuses_the_next_prompt() -> None:
    for draft_max in (0, 1, 5, 16):
        made = session(context=64, draft_max=draft_max, noise=0.3, when_full=WhenFull.STOP)
        done = made.generate("hello", max_tokens=500)
        assert done.finish_reason is FinishReason.LENGTH
        assert len(made.tokens) == made.context == 64
        before = made.messages
        with pytest.raises(ContextExceeded, match=r"length is 64 tokens\): shorten it, or raise --ctx-size \(up to"):
            made.generate("more")
        assert made.messages == before
        assert len(made.tokens) == 64
        made.reset()
        assert made.generate("hello", max_tokens=5).finish_reason is FinishReason.LENGTH


def test_generate_with_a_prompt_that_does_not_fit_changes_nothing() -> None:
    made = session(context=64)
    made.generate("hi", max_tokens=2)
    before = made.messages, made.tokens
    with pytest.raises(ContextExceeded):
        made.stream("x" * 100)
    with pytest.raises(ContextExceeded):
        made.complete("x" * 100)
    assert (made.messages, made.tokens) == before


def test_complete_continues_text_without_a_transcript() -> None:
    made = session(draft_max=3)
    done = made.collect(made.complete("once upon a time", max_tokens=12))
    assert made.messages == ()
    assert len(made.tokens) == len("once upon a time") + 12
    assert done.stats.prompt_tokens == len("once upon a time")
    again = made.collect(made.complete("once upon a dime", max_tokens=12))
    assert again.stats.cached_tokens == len("once upon a ")
    fresh = session(drafter="none")
    assert again.tokens == fresh.collect(fresh.complete("once upon a dime", max_tokens=12)).tokens
    turn = made.generate("hello", max_tokens=12)
    assert turn.tokens == session(drafter="none").generate("hello", max_tokens=12).tokens


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drafter": "nope"}, InputError, "no drafter 'nope'"),
        ({"draft_max": 65}, InputError, "draft length 65 is out of range"),
        ({"draft_max": -1}, InputError, "draft length -1 is out of range"),
        ({"context": 1}, InputError, "a context of 1 tokens is out of range: this model allows 2 to 512"),
        ({"context": 513}, InputError, "allows 2 to 512"),
        ({"seed": -1}, InputError, "seed -1 is out of range"),
        ({"rule": Rule.RATIO, "drafter": "suffix"}, CapabilityError, "with --drafter suffix, use the match rule"),
        ({"rule": Rule.RATIO, "reproducible": True}, CapabilityError, "with --reproducible, use the match rule"),
        ({"drafter": "tree", "rule": Rule.RATIO}, CapabilityError, "one sampled chain: with --drafter tree, use the"),
        ({"drafter": "tree"}, InputError, "needs a fixed size: give --draft-max N, 1 to 16 nodes"),
        ({"drafter": "tree", "draft_max": 17}, InputError, "give --draft-max N, 1 to 16 nodes"),
        ({"switch": SwitchOptions(), "reproducible": True}, CapabilityError, "reproducible"),
        ({"switch": SwitchOptions(), "rule": Rule.RATIO}, CapabilityError, "switching verifies with the match rule"),
        ({"switch": SwitchOptions(), "drafter": "suffix"}, InputError, "leave out --drafter"),
        ({"switch": SwitchOptions(), "draft_max": 3}, InputError, "leave out --drafter"),
    ],
    ids=str,
)
def test_session_refuses_bad_options_and_leaves_no_lease(
    options: dict[str, object], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is reserved or loaded; a context is looked at later."""
    pair = ascii_pair()
    leases = pair.budget.leases
    if "context" not in options:
        monkeypatch.setattr(pair.budget, "reserve", lambda name, *_, **__: pytest.fail(f"{name} was reserved"))
    with pytest.raises(error, match=message) as refusal:
        pair.session(session_options(**options))
    assert "\n" not in str(refusal.value)
    assert pair.budget.leases == leases
    assert pair.drafts.loaded == ()


def test_session_refused_for_its_drafter_releases_the_target_state() -> None:
    pair = ascii_pair(budget=Budget())
    used = pair.budget.used_nbytes
    with pair.session(SessionOptions(drafter="none")):
        pair.budget.limit = Limit(pair.budget.used_nbytes + 100)
    with pytest.raises(BudgetExceeded):
        pair.session(SessionOptions(drafter="model"))
    assert pair.budget.used_nbytes == used
    pair.session(SessionOptions(drafter="none")).close()
    assert pair.budget.used_nbytes == used


@pytest.mark.parametrize("max_tokens", [0, -3])
def test_generate_requires_positive_max_tokens(max_tokens: int) -> None:
    with pytest.raises(InputError, match=f"max_tokens {max_tokens} is out of range"):
        session().stream("hello", max_tokens=max_tokens)


def test_generate_refuses_invalid_unicode_before_anything_changes() -> None:
    made = session()
    with pytest.raises(InputError, match="lone surrogate"):
        made.stream("\ud800")
    assert made.messages == ()


def test_close_releases_memory_and_refuses_further_calls() -> None:
    pair = ascii_pair()
    used = pair.budget.used_nbytes
    made = pair.session(SessionOptions(drafter="model"))
    running = made.stream("hello")
    next(running)
    made.close()
    made.close()
    assert list(running) == []
    assert pair.budget.used_nbytes == used
    for start in (made.stream, made.complete, made.generate):
        with pytest.raises(InputError, match="this session is closed"):
            start("hello")


def test_ratio_rule_is_available_and_deterministic() -> None:
    texts = set()
    for _ in range(2):
        made = session(rule=Rule.RATIO, sampling=SamplingOptions(temperature=1.5), draft_max=3, noise=0.4)
        done = made.generate("hello", max_tokens=40)
        assert done.stats.accepted > 0
        assert done.stats.corrections > 0
        texts.add(done.text)
    assert len(texts) == 1


def test_seed_repeats_the_text_and_another_does_not() -> None:
    def text(**options: object) -> str:
        return session(sampling=WARM, **options).generate("hello", max_tokens=30).text

    plain = text(seed=3, drafter="none")
    for options in ({}, {"draft_max": 7}, {"drafter": "tree", "draft_max": 8}):
        assert text(seed=3, reproducible=True, **options) == text(seed=3, **options) == plain
    assert text(seed=3) != text(seed=4)
    unseeded = {ascii_pair().session(SessionOptions(sampling=WARM)).seed for _ in range(4)}
    assert len(unseeded) == 4


def texts(made: Session) -> list[str]:
    """Return the texts of consecutive calls of every kind."""
    found = [made.collect(made.complete("once upon", max_tokens=20)).text for _ in range(3)]
    found += [made.generate("hello", max_tokens=20).text]
    made.reset()
    found += [made.generate("hello", max_tokens=20).text]
    next(made.stream("and then?", max_tokens=20))
    return [*found, made.generate("and then?", max_tokens=20).text]


@pytest.mark.parametrize("options", [{"drafter": "none"}, {"drafter": "model"}, {"reproducible": True}], ids=str)
def test_seed_of_a_session_gives_the_same_texts_for_the_same_calls(options: dict[str, object]) -> None:
    expected = texts(session(sampling=WARM))
    assert texts(session(sampling=WARM, **options)) == expected
    assert texts(session(sampling=WARM, seed=4, **options)) != expected


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("seed", [None, 3])
def test_seed_of_an_answer_reproduces_it(seed: int | None, rule: Rule) -> None:
    options = {"sampling": WARM, "drafter": "model", "draft_max": 3, "rule": rule, "noise": 0.4}
    made = session(seed=seed, **options)
    seeds = set[int | None]()
    for turn in range(4):
        before = made.messages
        done = made.generate(f"turn {turn}", max_tokens=20)
        again = session(seed=done.stats.seed, **options)
        again.reset(before)
        assert again.generate(f"turn {turn}", max_tokens=20).text == done.text
        assert done.stats.seed == made.seed == done.stats.as_dict()["seed"]
        seeds.add(done.stats.seed)
    assert len(seeds) == 4
    assert seed is None or seed in seeds


def test_stats_of_stopped_replies_are_separate() -> None:
    made = session(seed=None)
    first = made.stream("hello", max_tokens=20)
    for _ in range(3):
        next(first)
    second = made.stream("and?", max_tokens=9)  # ends the first stream; is itself stopped before its first token
    third = made.generate("so?", max_tokens=5)
    done = [made.collect(first), made.collect(second), third]
    assert [each.stats.verified_tokens for each in done] == [first.stats.verified_tokens, 0, 5]
    assert first.stats.verified_tokens >= 3
    assert len({each.stats.seed for each in done}) == 3
    assert made.stats is third.stats


def test_memory_of_the_session_is_reported() -> None:
    made = session()
    stats = made.generate("hello", max_tokens=3).stats
    assert stats.planned_nbytes == made._shared.budget.used_nbytes > 0
    assert stats.peak_nbytes is None or stats.peak_nbytes > 10**6
