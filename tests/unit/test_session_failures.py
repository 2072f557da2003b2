"""What a session does when something fails or is forgotten: nothing is lost, nothing stays leased."""

from __future__ import annotations

import gc

import pytest

from edgedecode.errors import CapabilityError, ContextExceeded
from edgedecode.memory import Budget
from edgedecode.options import SessionOptions
from edgedecode.session import Session
from edgedecode.testing import ScriptedDrafter
from edgedecode.types import Draft
from tests.toys import ascii_pair


def session(**options: object) -> Session:
    return ascii_pair(ending=0.0, noise=0.7).session(SessionOptions(seed=1, **options))  # type: ignore[arg-type]


def test_an_answer_that_fails_leaves_the_conversation_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(drafter="none")
    made.generate("hello", max_tokens=8)
    before = made.messages
    forward, calls = type(made._pair.target).forward, 0

    def failing(*words: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise CapabilityError("the engine failed")
        return forward(*words, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(made._pair.target), "forward", failing)
        with pytest.raises(CapabilityError, match="the engine failed"):
            made.generate("and now?", max_tokens=8)
    assert calls == 4
    assert made.messages == before
    fresh = session(drafter="none")
    fresh.reset(before)
    assert made.generate("and now?", max_tokens=8).text == fresh.generate("and now?", max_tokens=8).text


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(drafter="none")
    monkeypatch.setattr(type(made._pair.tokenizer), "encode", lambda *_, **__: pytest.fail("the text was encoded"))
    with pytest.raises(ContextExceeded, match="characters"):
        list(made.stream("x" * 10_000_000))
    with pytest.raises(ContextExceeded, match="characters"):
        list(made.complete("x" * 10_000_000))


def test_a_dropped_session_gives_its_scratch_back() -> None:
    pair = ascii_pair(budget=Budget())
    made = pair.session(SessionOptions(drafter="ngram"))
    assert {"sampling", "n-gram index"} <= {lease.name for lease in pair.budget.leases}
    del made
    gc.collect()
    assert not {"sampling", "n-gram index"} & {lease.name for lease in pair.budget.leases}


def test_reproducible_text_refuses_trees() -> None:
    made = session(drafter="ngram", draft_max=4, reproducible=True)
    tree = Draft((3, 4), parents=(-1, -1), source="tree")
    made._drafting.drafters["ngram"] = ScriptedDrafter(dict.fromkeys(range(512), tree))
    with pytest.raises(CapabilityError, match="reproducible text needs chains"):
        made.generate("hello", max_tokens=8)
