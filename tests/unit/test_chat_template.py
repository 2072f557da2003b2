"""Chat templates render as in transformers, fail with one-line errors, and cannot leave their sandbox."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from edgedecode.errors import EdgeDecodeError, InputError, ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.text import template_limits
from edgedecode.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from edgedecode.text.messages import Message
from tests.shared_paths import SHARED, needs_shared

ROOT = Path(__file__).resolve().parents[2]
CONVERSATIONS: dict[str, list[dict[str, str]]] = {
    "user": [{"role": "user", "content": "Hi <b>there</b> & you"}],
    "system": [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "é 🦙?"}],
    "turns": [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "and 3+3?"},
    ],
    "tool": [{"role": "user", "content": "x"}, {"role": "tool", "content": '{"y": 1}'}],
}
LLAMA_3_LIKE = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n" + system_message + eos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}{{- "tools" }}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
STRICT_TURNS = """\
{{ bos_token }}{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    [{{ message['role'] }}] {{ message['content'] }}{{ eos_token }}
{% endfor %}
"""
EVERYTHING = """\
{%- set ns = namespace(count=0, self='me') %}
{%- for message in messages %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- generation %}{{ message | tojson }}{% endgeneration %}
    {{- dict(a=1, **{'b': message.content}) | tojson(indent=2) }}
    {{- dict.fromkeys(['k'], 2) | tojson }}
{%- endfor %}
{{ ns.count }}{{ ns.self }}
    {% if add_generation_prompt %}
go
    {% endif %}
"""


def transformers_rendering(source: str, messages: Sequence[Mapping[str, str]], *, prompt: bool) -> str:
    module = pytest.importorskip("transformers.utils.chat_template_utils")
    rendered = module.render_jinja_template(
        conversations=[[dict(message) for message in messages]],
        chat_template=source,
        add_generation_prompt=prompt,
        bos_token="<s>",
        eos_token="</s>",
    )
    return str(rendered[0][0])


def assert_same(source: str) -> None:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    for messages in CONVERSATIONS.values():
        for prompt in (True, False):
            wanted = transformers_rendering(source, messages, prompt=prompt)
            assert template.render(messages, add_generation_prompt=prompt) == wanted
            as_messages = [Message(**message) for message in messages]
            assert template.render(as_messages, add_generation_prompt=prompt) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("source", [LLAMA_3_LIKE, EVERYTHING, PLAIN_TEMPLATE], ids=["llama 3", "everything", "plain"])
def test_render_equals_transformers(source: str) -> None:
    assert_same(source)


@pytest.mark.slow
def test_render_of_the_bundled_pack_equals_transformers() -> None:
    assert_same((BUNDLED_PACK / "chat_template.jinja").read_text(encoding="utf-8"))


@needs_shared
@pytest.mark.slow
def test_render_of_qwen_equals_transformers_with_its_default_system_prompt() -> None:
    config = json.loads((SHARED / "tokenizers/qwen2.5/tokenizer_config.json").read_text(encoding="utf-8"))
    assert_same(config["chat_template"])
    text = ChatTemplate(config["chat_template"]).render(CONVERSATIONS["user"])
    assert text.startswith("<|im_start|>system\nYou are Qwen")


def test_render_reports_the_templates_own_error_in_one_line() -> None:
    template = ChatTemplate(STRICT_TURNS)
    assert template.render(CONVERSATIONS["turns"])
    with pytest.raises(InputError, match="refused these messages: Conversation roles must alternate"):
        template.render(CONVERSATIONS["system"])
    assert template.render(CONVERSATIONS["turns"]) == transformers_rendering(
        STRICT_TURNS, CONVERSATIONS["turns"], prompt=True
    ).replace("<s>", "").replace("</s>", "")


@pytest.mark.parametrize(
    "source", ["{% for m in messages %}", "{{ 1 +* 2 }}", "{{ x | no_such_filter }}", "{% frobnicate %}", "{{" * 3000]
)
def test_template_that_does_not_compile_is_refused_when_created(source: str) -> None:
    with pytest.raises(ManifestError, match="template") as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        *("{{ ''.__class__.__mro__ }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        *("{{ ''['__class__']['__mro__'] }}", "{{ (''|attr('__class__')).__mro__ }}"),
        *("{{ messages.__class__ .__base__.__subclasses__() }}", "{{ '{0.__class__.__mro__}'.format('') }}"),
        "{{ '{0.__class__.__mro__}' | format('') }}{{ ''.__class__.mro() }}",
        *("{{ raise_exception.__globals__['__builtins__'] }}", "{{ strftime_now.__globals__.json }}"),
        *("{{ dict.__call__.__globals__ }}", "{{ namespace.__init__.__globals__['json'] }}"),
        *("{{ lipsum.__globals__['os'].popen('id') }}", "{{ cycler.__init__.__globals__ }}"),
        *("{% set ns = namespace(__class__=1) %}", "{% set ns = namespace() %}{% set ns._x = 1 %}"),
        *("{{ messages.append(1) }}", "{{ messages[0].update({'role': 'x'}) }}"),
        "{{ self._TemplateReference__context.environment }}",
    ],
)
def test_sandbox_refuses_access_to_internals(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises((ManifestError, InputError)) as caught:
        ChatTemplate(source).render(messages)
    assert "\n" not in str(caught.value)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("source", ["{{ strftime_now.__globals__ }}", "{{ ''.__class__ }}", "{{ joiner.__init__ }}"])
def test_sandbox_renders_a_hidden_attribute_as_nothing(source: str) -> None:
    assert ChatTemplate(source).render([]) == ""


def test_sandbox_refuses_a_huge_range() -> None:
    with pytest.raises(InputError, match="Range too big"):
        ChatTemplate("{% for i in range(1000000000) %}x{% endfor %}").render([])


def test_sandbox_refuses_endless_recursion() -> None:
    with pytest.raises(InputError, match="refused these messages"):
        ChatTemplate("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}").render([])


def repeated(first: str, more: str) -> str:
    return "{% set n = namespace(x=" + first + ") %}{% for i in range(60) %}{% set n.x = " + more + " %}{% endfor %}"


MEMORY_HUNGRY = {
    "multiplied": "{{ ('a' * 900000000)[0] }}",
    "multiplied from the right": "{{ (900000000 * 'a')[0] }}",
    "a list": "{{ ([1] * 90000000) | length }}",
    "doubled with ~": repeated("'aaaaaaaa'", "n.x ~ n.x"),
    "doubled with +": repeated("'aaaaaaaa'", "n.x + n.x"),
    "numbers": repeated("99", "n.x * n.x"),
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for i in [1] recursive %}" + "{{ loop(range(99999)) }}" * 99 + "{% endfor %}",
    "recursive macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive blocks": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "plain text in a loop": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
    "text in a set block": "{% set x %}{% for i in range(99999) %}" + "x" * 500 + "{% endfor %}{% endset %}",
    "center": "{{ 'a' | center(900000000) }}",
    "center as a method": "{{ 'a'.center(900000000) }}",
    "center by name": "{{ ['a'] | map('center', 900000000) | list | length }}",
    "center of a block": "{% filter center(900000000) %}a{% endfilter %}",
    "zeros": "{{ 'a'.zfill(900000000) }}",
    "tabs": "{{ ('\\t' * 10000).expandtabs(100000) }}",
    "bytes": "{{ (5).to_bytes(900000000, 'big') | length }}",
    "indent": "{{ ('\\n' * 10000) | indent(width=100000) }}",
    "wordwrap": "{{ ('a' * 100000) | wordwrap(1, wrapstring='b' * 100000) }}",
    "replace": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "replace as a method": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "sum": "{{ ([['a']] * 9999) | sum(start=[]) | length }}",
    "join": "{{ range(90000) | join('b' * 100000) }}",
    "join as a method": "{{ ('b' * 100000).join('a' * 90000) }}",
    "batch": "{{ [1] | batch(900000000, 'x') | list | length }}",
    "slice": "{{ [1] | slice(900000000) | list | length }}",
    "%": "{{ '%900000000d' % 1 }}",
    "% with a width given": "{{ '%*d' % (900000000, 1) }}",
    "the filter format": "{{ '%900000000d' | format(1) }}",
    "the method format": "{{ '{:{w}}'.format(1, w=900000000) }}",
    "format_map": "{{ '{a:900000000}'.format_map({'a': 1}) }}",
    "tojson": "{{ messages | tojson(separators=('a' * 1000000, 'b' * 1000000)) }}",
    "indented json": "{{ messages | tojson(indent=900000000) }}",
    "shared lists": repeated("['a']", "[n.x, n.x]") + "{{ n.x }}",
    "shared mappings": repeated("1", "dict(a=n.x, b=n.x)"),
    "shared tuples": repeated("1", "(n.x, n.x)"),
    "many slices": "{% set x0 = 'a' * 500000 %}"
    + "".join(f"{{% set x{i + 1} = x{i}[1:] %}}" for i in range(300))
    + "{{ x300 | length }}",
    "computed while compiling": "{% autoescape 'a' | center(900000000) %}{% endautoescape %}",
}
MEASURE_PEAK = """
import sys
from edgedecode.text import template_limits
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.errors import EdgeDecodeError
from edgedecode.memory.process_memory import peak_nbytes
from tests.unit.test_chat_template import MEMORY_HUNGRY
template_limits.STEPS = 100_000
before, messages = peak_nbytes(), [{"role": "user", "content": "hi"}]
for name, source in MEMORY_HUNGRY.items():
    try:
        ChatTemplate(source).render(messages, most_nbytes=4_000_000)
    except EdgeDecodeError as error:
        assert "\\n" not in str(error), name
    else:
        raise AssertionError(name)
print(peak_nbytes() - before)
"""


@pytest.mark.memory
def test_template_limits_bound_memory() -> None:
    """Without limits most of these templates would take gigabytes or hours, some already while being compiled."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_PEAK], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    if peak_nbytes() is not None:
        assert int(done.stdout) < 25_000_000


def test_template_limits_count_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "STEPS", 1000)
    loop = ChatTemplate("{% for i in range(30) %}{% for j in range(30) %}{% endfor %}{% endfor %}")
    assert loop.render([]) == ""
    monkeypatch.setattr(template_limits, "STEPS", 900)
    with pytest.raises(ManifestError, match="it takes more than 900 steps"):
        loop.render([])


def test_template_limits_stop_a_slow_template_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "SECONDS", 0.0)
    with pytest.raises(ManifestError, match="it takes more than 0 seconds"):
        ChatTemplate("{% for i in range(30) %}{% endfor %}").render([])


@pytest.mark.parametrize(
    "source",
    [
        *("{% if a == a %}{% endif %}", "{% if 1 is eq(a) %}{% endif %}", "{% if 'x' in a %}{% endif %}"),
        *("{% set x = a | max %}", "{% set x = a | sort %}", "{% set x = 'a'.upper() %}"),
    ],
)
def test_template_limits_check_the_clock_at_every_computation(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{% set a = messages %}" + source)
    assert template.render([]) == ""
    monkeypatch.setattr(template_limits, "SECONDS", 0.0)
    with pytest.raises(ManifestError, match="it takes more than 0 seconds"):
        template.render([])


SLOW = {
    "max": "{% set a = range(9999) | list %}{% for i in range(20) %}{% set x = a | max %}{% endfor %}",
    "rfind": "{% set x = ('a' * 300000).rfind('a' * 70000 ~ 'b' ~ 'a' * 70000) %}",
    "strip": "{% set x = ('a' * 300000).strip('b' * 70000 ~ 'a') %}",
    "trim": "{% set x = ('a' * 300000) | trim('b' * 70000 ~ 'a') %}",
}


@pytest.mark.parametrize("name", SLOW)
def test_template_limits_count_steps_by_input_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "STEPS", 12_000)
    with pytest.raises(ManifestError, match="it takes more than 12000 steps"):
        ChatTemplate(SLOW[name]).render([])


def test_sandbox_has_no_filter_of_quadratic_cost() -> None:
    with pytest.raises(ManifestError, match="No filter named 'wordwrap'"):
        ChatTemplate("{{ 'a' | wordwrap }}")


@pytest.mark.parametrize("turns", [1, 300])
@pytest.mark.parametrize("source", [LLAMA_3_LIKE, EVERYTHING, PLAIN_TEMPLATE], ids=["llama 3", "everything", "plain"])
def test_usual_templates_stay_far_below_the_memory_limit(source: str, turns: int) -> None:
    """A session allows at least 200 bytes for each byte of its context, and some hundred thousand at the least."""
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    messages = [Message("user" if turn % 2 == 0 else "assistant", f"turn {turn}") for turn in range(turns)]
    text = template.render(messages)
    assert template.render(messages, most_nbytes=50 * len(text)) == text


def test_template_of_megabytes_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(ManifestError, match="has 3000000 characters: the limit is 65536"):
        ChatTemplate("{{ x }}"[:6] * 500000)


def test_sandbox_passes_a_complete_generator_to_a_method() -> None:
    template = ChatTemplate("{{ ', '.join(messages | map(attribute='role')) }}")
    assert template.render(CONVERSATIONS["turns"]) == "user, assistant, user"


def test_render_of_a_recursive_loop_includes_every_level() -> None:
    tree = "[{'n': 1, 'more': [{'n': 2, 'more': []}, {'n': 3, 'more': []}]}]"
    loop = "{% for x in " + tree + " recursive %}{{ x.n }}({{ loop(x.more) }}){% endfor %}"
    assert ChatTemplate(loop).render([]) == "1(2()3())"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user"}, "no content"),
        ({}, "no role and no content"),
        ({"role": "wizard", "content": "x"}, "'wizard' is unknown: use one of system, user, assistant, tool"),
        ({"role": "user", "content": None}, "NoneType"),
        ({"role": "user", "content": "x", "image": object()}, "value that JSON cannot represent"),
        ("user: x", "a message is str"),
    ],
)
def test_render_refuses_invalid_messages(message: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        ChatTemplate(PLAIN_TEMPLATE).render([message])
    assert isinstance(caught.value, EdgeDecodeError)
