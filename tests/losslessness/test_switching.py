"""Entropy switching on real models: every token is the choice of the model named as its source."""

from collections.abc import Sequence

import edgedecode
from edgedecode import Pair, SamplingOptions, SwitchOptions
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel
from edgedecode.switching.rule import entropy
from tests.toys import session_options

PROMPTS = (
    "Extract age, job as JSON.\nUma Evans is 61 years old, lives in Berlin and works as a pilot.",
    "What will the weather be in Oslo on Tuesday?",
    "Tell me a short story about a horse named David.",
    "Sort these words: pear, apple, melon, grape.",
)

UP = 0.3
GREEDY = SamplingOptions()
NEAR_TIE = 4.0
"""Largest logit gap of a near tie, in multiples of the kernel noise, as in `eval --equality`."""


def one_row_logits(model: LanguageModel, tokens: Sequence[int], start: int) -> list[FloatArray]:
    """Return the logits after tokens[: start], tokens[: start + 1] and so on, one row per pass."""
    state, rows = model.new_state(len(tokens) + 1), []
    model.forward(tokens[: start - 1], state, rows="none")
    state.keep(range(start - 1))
    for token in tokens[start - 1 : -1]:
        rows.append(model.forward([token], state).logits[0].copy())
        state.keep([0])
    state.close()
    return rows


def test_switching_emits_the_choice_of_the_model_that_is_named(pair: Pair) -> None:
    noise = 0.0 if pair.target.card.row_invariant else pair.manifest.models["target"].kernel_noise or 0.05
    options = session_options(sampling=GREEDY, switch=SwitchOptions(threshold=UP))
    assert pair.draft is not None
    models = {"target": pair.target, "draft": pair.draft}
    counts = {"target": 0, "draft": 0}
    for prompt in PROMPTS:
        with pair.session(options) as session:
            chunks = [*session.stream(prompt, max_tokens=48)]
            tokens, stats = session.tokens, session.stats
        sources = [chunk.source for chunk in chunks for _ in chunk.tokens]
        answer = [token for chunk in chunks for token in chunk.tokens]
        start = tokens.index(answer[0], stats.prompt_tokens)
        sequence = [*tokens[:start], *answer]
        rows = {name: one_row_logits(model, sequence, start) for name, model in models.items()}
        verified = {"target", "model", "trim", "suffix"}
        for place, (token, source) in enumerate(zip(answer, sources, strict=True)):
            by_target = source in verified
            row = rows["target" if by_target else "draft"][place][: pair.tokenizer.size]
            assert row.max() - row[token] <= NEAR_TIE * noise, (prompt, place, source)
            if not by_target and pair.target.card.row_invariant:
                assert entropy(row) < UP
            counts["target" if source in verified else "draft"] += 1
    assert counts["target"] > 5
    assert counts["draft"] > 20


def test_switching_draws_the_same_text_for_the_same_seed(pair: Pair) -> None:
    options = session_options(
        sampling=SamplingOptions(temperature=0.8), seed=11, drafter="none", switch=SwitchOptions(threshold=0.5)
    )
    texts = []
    for _ in range(2):
        with pair.session(options) as session:
            texts.append([session.generate(prompt, max_tokens=32).tokens for prompt in PROMPTS[:2]])
    assert texts[0] == texts[1]


def test_switching_prefills_no_prompt_with_the_target_while_the_draft_model_is_sure(pair: Pair) -> None:
    with pair.session(session_options(switch=SwitchOptions(threshold=1e9))) as session:
        session.generate(PROMPTS[0], max_tokens=16)
        assert session.stats.rounds == 0
        assert session.stats.unverified_tokens > 0
    with pair.session(session_options(switch=SwitchOptions(threshold=UP))) as session:
        before = session.generate(PROMPTS[0], max_tokens=48)
        again = session.generate(PROMPTS[1], max_tokens=48)
    with pair.session(
        session_options(switch=SwitchOptions(threshold=UP)),
        messages=(edgedecode.Message("user", PROMPTS[0]), edgedecode.Message("assistant", before.text)),
    ) as fresh:
        assert fresh.generate(PROMPTS[1], max_tokens=48).text == again.text


def test_draft_model_writes_only_with_the_whole_conversation_in_its_state(pair: Pair) -> None:
    """A draft model with a window guesses well, but what it writes is not verified: the plan keeps its state whole."""
    options = session_options(context=2048, switch=SwitchOptions(threshold=1e9))
    plan = edgedecode.plan(None, options, runtime=pair.runtime).memory
    assert "draft_context" not in {cut.what for cut in plan.cuts}
    assert plan.choice.draft_context == 0
    filler = " ".join(f"Line {number}: the lamp is grey." for number in range(100))
    question = f"Uma Evans lives in Berlin. {filler}\nWhere does Uma Evans live?"
    answers = []
    for memory in (plan.least_running, None):
        with edgedecode.load(runtime=pair.runtime, memory=memory) as opened, opened.session(options) as session:
            answers.append(session.generate(question, max_tokens=24).tokens)
            assert session.stats.unverified_tokens == len(answers[-1])
    assert answers[0] == answers[1]


def test_target_writes_once_the_draft_models_context_is_full(pair: Pair) -> None:
    with pair.session(session_options(context=1024, switch=SwitchOptions(threshold=1e9))) as session:
        writer = session._drafts.switching
        writer.state._window = 256  # as of a draft model with a shorter context
        session.generate("Tell me a story. " + "The lamp is grey. " * 30, max_tokens=16)
        assert session.stats.unverified_tokens > 0
        session.generate("Go on. " + "The lamp is grey. " * 30, max_tokens=16)
        assert session.stats.unverified_tokens == 0
