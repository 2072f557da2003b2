"""Modes of a chat, /undo, /retry and lists of adapters: the conversation survives every change and every error."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import edgedecode
from edgedecode import (
    BudgetExceeded,
    CapabilityError,
    FinishReason,
    InputError,
    Message,
    Pair,
    SamplingOptions,
    SessionDetails,
    SessionOptions,
    SwitchOptions,
)
from edgedecode.apps.chat.conversation import Conversation, chat_modes, chosen_mode, mode_of
from edgedecode.decoding.verify import Rule
from edgedecode.testing import CHATML
from edgedecode.text.chat_template import ChatTemplate
from tests.apps.chat_script import OPTIONS, conversation_of, talk
from tests.peft_folders import list_adapter, write_peft
from tests.thinkers import CLOSE, thinker
from tests.toys import session_options

SCHEDULED = replace(OPTIONS, draft_max=None)


def marked(err: str) -> list[str]:
    """Return the names that a list shows as present."""
    return [line.split()[1] for line in err.splitlines() if line.startswith("* ")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SessionOptions(), "auto"),
        (SessionOptions(drafter="none"), "plain"),
        (SessionOptions(draft_max=0), "plain"),
        (SessionOptions(draft_max=3), "fixed"),
        (SessionOptions(details=SessionDetails(reproducible=True)), "auto"),
        (SessionOptions(drafter="suffix", draft_max=3), "suffix"),
        (SessionOptions(details=SessionDetails(switch=SwitchOptions(threshold=0.1))), "switch"),
    ],
)
def test_mode_of_names_the_mode_and_its_options_lead_back_to_it(
    options: SessionOptions, expected: str, toy: Pair
) -> None:
    assert mode_of(options) == expected
    modes = chat_modes(toy, options)
    found = modes[expected].options
    assert found == options or (found.drafter, found.draft_max, options.draft_max) == ("none", None, 0)
    assert all(mode_of(mode.options) == name for name, mode in modes.items())


def test_chat_modes_of_a_reproducible_chat_do_not_switch_and_without_a_draft_model_none_needs_it(toy: Pair) -> None:
    modes = chat_modes(toy, SessionOptions(details=SessionDetails(reproducible=True)))
    assert "switch" not in modes
    assert all(mode.options.details.reproducible for mode in modes.values())
    toy.manifest = replace(toy.manifest, models={"target": toy.manifest.models["target"]})
    assert list(chat_modes(toy, SessionOptions())) == ["auto", "plain", "recycle", "suffix"]


def test_chosen_mode_switches_only_with_a_calibrated_curve_or_when_the_chat_started_so(toy: Pair) -> None:
    with pytest.raises(CapabilityError, match="not calibrated for switching: run `edgedecode calibrate`"):
        chosen_mode("switch", toy, OPTIONS)
    switching = SwitchOptions(threshold=0.5)
    assert chosen_mode("switch", toy, session_options(SCHEDULED, switch=switching)).options.details.switch == switching


def test_decoding_lists_changes_and_keeps_the_conversation(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    chat = talk(conversation_of(toy, SCHEDULED), "hello", "/set decoding")
    assert marked(capsys.readouterr().err) == ["auto"]
    before, first = chat.session, chat.session.messages
    used = toy.budget.used_nbytes
    talk(chat, "/set decoding plain", "/set decoding", "/stats")
    err = capsys.readouterr().err
    assert "auto (drafts where they pay)" in err, "of the last answer"
    assert "decoding plain: no drafts" in err
    assert marked(err) == ["plain"]
    assert chat.session is not before
    assert chat.session.messages == first
    assert toy.budget.used_nbytes <= used  # the old session is closed
    talk(chat, "again")
    assert chat.session.stats.mode == "plain"
    assert chat.session.messages[:2] == first
    assert len(chat.session.messages) == 4
    talk(chat, "/set decoding suffix", "again")
    assert chat.session.drafter_name == "suffix"
    talk(chat, "/set decoding auto", "again")
    assert chat.session.stats.mode == "auto"
    assert len(chat.session.messages) == 8


def test_slash_think_changes_the_prompt_and_outlives_a_mode(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    source = CHATML + "{% if enable_thinking is false %}<think></think>{% endif %}"
    toy.tokenizer.chat_template = ChatTemplate(source)
    chat = talk(conversation_of(toy, SCHEDULED), "hello", "/think")
    assert "thinking is as the chat template has it" in capsys.readouterr().err
    before = chat.session.stats.prompt_tokens
    talk(chat, "/think off", "/set decoding plain", "/retry")
    assert "thinking is off" in capsys.readouterr().err
    assert (chat.session.options.details.think, chat.session.stats.mode) == ("off", "plain")
    assert chat.session.stats.prompt_tokens > before


def test_slash_think_takes_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    with thinker(ending=-50.0) as pair:
        chat = talk(conversation_of(pair, SCHEDULED), "/think 6", "hello", "/set decoding plain", "/retry")
        assert "for 6 tokens at most" in capsys.readouterr().err
        assert chat.session.tokens[-chat.session.stats.tokens :][6] == CLOSE
        talk(chat, "/think 0")
        assert "thinking is off" in capsys.readouterr().err
        talk(chat, "/think low")
        assert "thinking is low, for 256 tokens at most" in capsys.readouterr().err
        talk(chat, "/think auto", "/think -7", "/think 99999999999999")
        said = capsys.readouterr().err
        assert "thinking is as the chat template has it\n" in said
        assert "too small" in said
        assert "too large" in said
        assert chat.session.options.details.think == "auto"


def test_answer_is_the_same_in_every_verified_mode(toy: Pair) -> None:
    chat = talk(conversation_of(toy, SCHEDULED), "hello")
    answers = {chat.session.messages[1].content}
    for mode in ("plain", "model", "suffix", "recycle"):
        talk(chat, f"/set decoding {mode}", "/retry")
        assert mode_of(chat.session.options) == mode
        answers.add(chat.session.messages[1].content)
    assert len(answers) == 1


def test_decoding_that_is_refused_before_anything_changes_keeps_the_session(
    toy: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    ratio = session_options(SCHEDULED, drafter="model", draft_max=2, rule=Rule.RATIO)
    chat = talk(conversation_of(toy, ratio), "hello")
    messages = chat.session.messages
    capsys.readouterr()
    talk(chat, "/set decoding suffix")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "the ratio rule samples from the draft model" in err
    assert mode_of(chat.session.options) == "model"
    assert chat.session.messages == messages
    assert talk(chat, "again").last_finish is FinishReason.LENGTH


@pytest.mark.parametrize("error", [BudgetExceeded("no memory", table=""), KeyboardInterrupt()])
def test_decoding_that_fails_opens_the_old_mode_again(
    error: BaseException, toy: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = talk(conversation_of(toy, SCHEDULED), "hello")
    messages, opened = chat.session.messages, toy.session

    def session(options: SessionOptions, **others: object) -> object:
        if options.drafter == "none":
            raise error
        return opened(options, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(toy, "session", session)
    capsys.readouterr()
    talk(chat, "/set decoding plain", "/set decoding")
    err = capsys.readouterr().err
    assert ("edgedecode: no memory\n" if isinstance(error, BudgetExceeded) else "(interrupted)") in err
    assert marked(err) == ["auto"]
    assert chat.session.messages == messages
    assert talk(chat, "again").last_finish is FinishReason.LENGTH


def test_decoding_that_cannot_go_back_either_keeps_the_messages_for_another_try(
    toy: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chat = talk(conversation_of(toy, SCHEDULED), "hello")
    messages = chat.session.messages
    with monkeypatch.context() as patch:
        patch.setattr(toy, "session", Mock(side_effect=BudgetExceeded("no memory", table="")))
        capsys.readouterr()
        talk(chat, "/set decoding plain", f"/save {tmp_path / 'talk.json'}")
        err = capsys.readouterr().err
        assert "no memory; /set decoding opens the conversation again, /save keeps it" in err
        assert "2 messages saved" in err
    talk(chat, "/set decoding plain", "again")
    assert chat.session.messages[:2] == messages
    assert chat.last_finish is FinishReason.LENGTH


def test_decoding_continues_the_seeds_of_a_sampled_chat(toy: Pair) -> None:
    chat = talk(conversation_of(toy, SCHEDULED), "hello")
    first = chat.session.seed
    talk(chat, "/set decoding plain", "hello")
    assert chat.session.seed != first
    other = talk(conversation_of(toy, replace(SCHEDULED, seed=None)), "/set decoding plain", "hello")
    assert other.session.options.seed is None


def test_undo_drops_the_last_turn_and_keeps_the_system_message(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    chat = conversation_of(toy)
    chat.start_over([Message("system", "be brief")])
    talk(chat, "hello", "a long message " * 8, "/undo")
    assert [message.content for message in chat.session.messages[:2]] == ["be brief", "hello"]
    assert len(chat.session.messages) == 3
    assert f"dropped the last turn: {'a long message ' * 4}…\n" in capsys.readouterr().err
    talk(chat, "/undo", "/undo")
    assert [message.role for message in chat.session.messages] == ["system"]
    assert "the conversation is empty" in capsys.readouterr().err


def test_retry_answers_the_last_message_again(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    chat = talk(conversation_of(toy), "hello")
    before = chat.session.messages
    talk(chat, "/retry")
    assert chat.session.messages == before
    assert "greedy: expect the same answer" in capsys.readouterr().err
    assert chat.session.stats.cached_tokens > 0
    talk(chat, "again", "/retry")
    assert chat.session.messages[:2] == before
    assert [message.role for message in chat.session.messages[2:]] == ["user", "assistant"]


def test_retry_of_a_sampled_answer_gives_another_one(toy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    chat = talk(conversation_of(toy, replace(OPTIONS, sampling=SamplingOptions(temperature=1.0))), "hello")
    (asked, answer) = chat.session.messages
    talk(chat, "/retry")
    assert (chat.session.messages[0] == asked, chat.session.messages[1] == answer) == (True, False)
    assert "greedy" not in capsys.readouterr().err


def test_retry_of_a_loaded_conversation_answers_its_unanswered_message(toy: Pair) -> None:
    chat = conversation_of(toy)
    chat.start_over([Message("user", "one"), Message("assistant", "two"), Message("tool", "three")])
    talk(chat, "/retry")
    assert [message.role for message in chat.session.messages] == ["user", "assistant", "tool", "assistant"]


def test_retry_that_fails_keeps_the_old_answer(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(chat, "hello")
    before = chat.session.messages
    monkeypatch.setattr(chat.session, "stream", Mock(side_effect=InputError("refused")))
    talk(chat, "/retry")
    assert "edgedecode: refused" in capsys.readouterr().err
    assert chat.session.messages == before


def test_status_shows_mode_and_use_of_the_context(chat: Conversation) -> None:
    context = chat.session.context
    assert chat.status == f"toy · fixed · 0 of {context} tokens"
    talk(chat, "hello")
    assert chat.status == f"toy · fixed · {len(chat.session.tokens)} of {context} tokens"
    talk(chat, "again", "/undo")
    assert chat.status == f"toy · fixed · context {context} tokens"
    talk(chat, "/clear")
    assert chat.status == f"toy · fixed · 0 of {context} tokens"


def test_adapter_is_listed_kept_by_a_change_of_mode_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pack_copy: Path
) -> None:
    list_adapter(pack_copy, "odd", write_peft(tmp_path / "odd", seed=1))
    with edgedecode.load(pack_copy, runtime="onnx", adapters=True) as pair:
        chat = talk(conversation_of(pair, SCHEDULED), "/adapter")
        err = capsys.readouterr().err
        assert marked(err) == ["off"]
        assert "\n  odd\n" in err
        talk(chat, "/adapter odd:0.5", "/set decoding plain", "/adapter")
        assert "* odd  scale 0.5\n" in capsys.readouterr().err
        assert chat.status.startswith("demo · plain · odd · ")
        assert chat.session.options.adapter == "odd"
        talk(chat, "/adapter off", "/set decoding suffix", "hello")
        assert chat.session.options.adapter is None
