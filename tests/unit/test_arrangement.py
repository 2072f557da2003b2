"""Messages that a chat template does not know are folded into others or refused; none is lost."""

import pytest

from edgedecode import InputError, ManifestError, Message
from edgedecode.text.arrangement import TOOL_FRAME, Arranger, Sent
from edgedecode.text.chat_template import ChatTemplate

EACH = "{% for m in messages %}"
END = "{% endfor %}"
SHOWN = "[{{ m.role }}]{{ m.content }}"
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}[system]{{ messages[0].content }}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    f"{SHOWN}{END}"
)
SHAPES: dict[str, str] = {
    "all roles": f"{EACH}{SHOWN}{END}",
    "no system": f"{EACH}{{% if m.role != 'system' %}}{SHOWN}{{% endif %}}{END}",
    "system raises": f"{EACH}{{% if m.role == 'system' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{SHOWN}{END}",
    "strict alternation": ALTERNATING,
    "no tool": f"{EACH}{{% if m.role in ('system', 'user', 'assistant') %}}{SHOWN}{{% endif %}}{END}",
    "tool raises": f"{EACH}{{% if m.role == 'tool' %}}{{{{ raise_exception('tool') }}}}{{% endif %}}{SHOWN}{END}",
    "ipython": f"{EACH}{{% if m.role in ('system', 'user', 'assistant', 'ipython') %}}{SHOWN}{{% endif %}}{END}",
    "observation": f"{EACH}{{% if m.role != 'tool' %}}{SHOWN}{{% endif %}}{END}{{# role == 'observation' #}}",
    "tools as a variable": "{% if tools %}{{ tools }}{% endif %}" + f"{EACH}{SHOWN}{END}",
    "parts": f"{EACH}[{{{{ m.role }}}}]{{% for p in m.content %}}{{{{ p.text }}}}{{% endfor %}}{END}",
    "first system only": (
        "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
        f"{EACH}{{% if m.role != 'system' %}}{SHOWN}{{% endif %}}{END}"
    ),
    "bos inside": "{{ bos_token }}" + f"{EACH}{SHOWN}{{{{ eos_token }}}}{END}",
    "thinking": f"{EACH}{SHOWN}{END}{{% if enable_thinking %}}<think>{{% endif %}}",
    "a role twice": f"{EACH}{SHOWN}{{% if m.role == 'user' %}}{SHOWN}{{% endif %}}{END}",
}
CONVERSATION = [
    Message("system", "be brief"),
    Message("user", "first question"),
    Message("assistant", "first answer"),
    Message("user", "second question"),
    Message("assistant", '{"name": "f", "arguments": {}}'),
    Message("tool", "the result of f"),
]


def rendered(source: str, messages: list[Message]) -> str:
    return Arranger(ChatTemplate(source)).render([Sent(each.role, each.content) for each in messages])


@pytest.mark.parametrize("shape", SHAPES)
def test_no_message_is_lost(shape: str) -> None:
    for start in range(len(CONVERSATION)):
        for end in range(start + 1, len(CONVERSATION) + 1):
            messages = CONVERSATION[start:end]
            try:
                found = rendered(SHAPES[shape], messages)
            except InputError:
                assert shape == "strict alternation"
                assert messages[0].role == "assistant", "an answer without a question has no place"
                continue
            assert all(each.content in found for each in messages), (shape, messages, found)
            places = [found.index(each.content) for each in messages]
            assert places == sorted(places)


def test_what_a_template_knows_stays_as_it_is() -> None:
    assert rendered(SHAPES["all roles"], CONVERSATION) == "".join(f"[{m.role}]{m.content}" for m in CONVERSATION)
    assert "[ipython]the result of f" in rendered(SHAPES["ipython"], CONVERSATION)
    assert "[observation]the result of f" in rendered(SHAPES["observation"], CONVERSATION)


def test_what_a_template_lacks_is_folded_into_the_users_message() -> None:
    assert rendered(SHAPES["no system"], CONVERSATION[:2]) == "[user]be brief\n\nfirst question"
    assert rendered(SHAPES["no tool"], CONVERSATION[-2:]).endswith(f"[user]{TOOL_FRAME}the result of f")
    alternating = rendered(SHAPES["strict alternation"], [CONVERSATION[1], CONVERSATION[3]])
    assert alternating == "[user]first question\n\nsecond question"


def test_results_of_one_and_of_many_words_differ() -> None:
    short, long = (rendered(SHAPES["no tool"], [*CONVERSATION[:5], Message("tool", text)]) for text in ("a", "b " * 20))
    assert len(long) > len(short) + 30


@pytest.mark.parametrize(
    "source",
    [
        f"{{% for m in messages[-2:] %}}{SHOWN}{END}",
        "nothing at all",
        f"{EACH}{{% if m.role != 'assistant' %}}{SHOWN}{{% endif %}}{END}",
        "{{ raise_exception('never') }}",
    ],
)
def test_a_template_that_leaves_messages_out_is_refused_with_the_reason(source: str) -> None:
    with pytest.raises(InputError, match=r"leaves out message \d, the \w+'s|never"):
        rendered(source, CONVERSATION)


@pytest.mark.slow
def test_a_template_that_does_not_end_is_stopped() -> None:
    source = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    with pytest.raises((InputError, ManifestError)):
        rendered(source, CONVERSATION[:2])


LONG = [Sent("user", "What is it? Say so in\ntwo lines & <b>"), Sent("assistant", "a frog"), Sent("user", "Why?")]


@pytest.mark.parametrize("part", ["[:20]", ".split('\\n')[0]", ".split(' ')[0]", "*('?' not in m.content)"])
def test_a_template_that_leaves_out_what_some_contents_have_is_refused(part: str) -> None:
    arranger = Arranger(ChatTemplate(f"{EACH}[{{{{ m.role }}}}]{{{{ m.content{part} }}}}{END}"))
    assert arranger.render([Sent("user", "short")]) == "[user]short"
    with pytest.raises(InputError, match="leaves out a part of message 1, the user's"):
        arranger.render(LONG)


@pytest.mark.parametrize("changed", ["|upper", "|tojson", "|e", "|trim", ".split('in')[-1]", "|title"])
def test_a_template_may_write_contents_in_its_own_way(changed: str) -> None:
    arranger = Arranger(ChatTemplate(f"{EACH}[{{{{ m.role }}}}]{{{{ m.content{changed} }}}}{END}"))
    assert arranger.render(LONG).count("[") == 3
