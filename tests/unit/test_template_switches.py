"""Variables of a chat template beside the conversation, and its switch for thinking."""

import pytest

from edgedecode import InputError
from edgedecode.commands import template_argument
from edgedecode.text.template_switches import can_think, template_arguments, template_variables

QWEN = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
GRANITE = "{% if thinking %}think {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
OSS = "effort {{ reasoning_effort|default('medium') }} {% for m in messages %}{{ m.content }}{% endfor %}"
PLAIN = "{% set here = 1 %}{% for m in messages %}{{ m.content }}{{ bos_token }}{{ here }}{% endfor %}"


def test_variables_are_those_that_a_caller_may_set() -> None:
    assert template_variables(QWEN) == {"enable_thinking"}
    assert template_variables(PLAIN) == frozenset()
    assert template_variables("{{ date_string }}{% for a in tools %}{{ a }}{% endfor %}") == {"date_string"}
    assert [can_think(each) for each in (QWEN, GRANITE, OSS, PLAIN)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("source", "think", "found"),
    [
        (QWEN, "", {}),
        (QWEN, "off", {"enable_thinking": False}),
        (QWEN, "none", {"enable_thinking": False}),
        (QWEN, "minimal", {"enable_thinking": False}),
        (QWEN, "high", {"enable_thinking": True}),
        (GRANITE, "on", {"thinking": True}),
        (OSS, "high", {"reasoning_effort": "high"}),
        (OSS, "minimal", {"reasoning_effort": "minimal"}),
        (PLAIN, "none", {}),
        (PLAIN, "off", {}),
    ],
)
def test_thinking_sets_the_templates_own_switch(source: str, think: str, found: dict[str, object]) -> None:
    assert template_arguments(source, {}, think=think) == found


@pytest.mark.parametrize(
    ("source", "given", "think", "said"),
    [
        (PLAIN, {}, "on", "no switch for thinking"),
        (QWEN, {}, "much", "use one of off, on"),
        (QWEN, {"colour": 1}, "", "does not read 'colour': it reads enable_thinking"),
        (PLAIN, {"colour": 1}, "", "it reads none"),
        (QWEN, {"messages": []}, "", "set by the conversation"),
        (QWEN, {"add_generation_prompt": False}, "", "set by the conversation"),
    ],
)
def test_what_a_template_does_not_read_is_refused(source: str, given: dict[str, object], think: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        template_arguments(source, given, think=think)


def test_arguments_of_the_command_line_are_json_or_text() -> None:
    read = [template_argument(each) for each in ("a=true", "b=3", "c=today", 'd={"e": 1}', "f=")]
    assert read == [("a", True), ("b", 3), ("c", "today"), ("d", {"e": 1}), ("f", "")]
