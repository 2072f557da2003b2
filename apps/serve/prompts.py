"""Texts and tokens of prompts, for requests that want no answer: memory for them is leased as a session's is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edgedecode import InputError
from edgedecode.text.control_tokens import joined
from edgedecode.text.encoder import Encoder
from edgedecode.text.fill_in import can_fill_in, fill_in_prompt
from edgedecode.text.template_switches import template_arguments
from edgedecode.text.thinking import USUAL

from .offered import context_length
from .requests.asked import Asked
from .running import Service


def prompt_text(asked: Asked, service: Service) -> str:
    """Return the conversation of a chat as the model reads it. Raises InputError, ContextExceeded, BudgetExceeded."""
    with encoder(service, asked) as source:
        return str(_rendered(asked, service, source))  # of its own kind where messages spell tokens


def prompt_tokens(asked: Asked, service: Service) -> int:
    """Return how many tokens the conversation of a chat has. Raises as `prompt_text`."""
    with encoder(service, asked) as source:
        return len(source.encode(_rendered(asked, service, source)))


def continued(asked: Asked, service: Service) -> Asked:
    """Return a chat whose answer goes on where its last message ends, with its prompt. Raises as `prompt_text`."""
    with encoder(service, asked) as source:
        return replace(asked, prompts=(tuple(source.encode(_rendered(asked, service, source))),))


def _rendered(asked: Asked, service: Service, source: Encoder) -> str:
    if not asked.continues:
        return source.render((*asked.messages, asked.message))
    text = source.render(asked.messages)
    thinking = service.pair.shared.thinking or USUAL
    if thinking.opens(text):  # what goes on is no thought
        text = joined(text, f"\n{thinking.end}{thinking.opening}")
    return joined(text, service.pair.tokenizer.without_controls(asked.text, role="assistant"))


def filled_in(asked: Asked, service: Service) -> Asked:
    """Return a completion whose prompts ask for what is missing before a suffix. Raises as `prompt_text`."""
    fill_in, tokenizer = asked.fill_in, service.pair.tokenizer
    assert fill_in is not None
    if not can_fill_in(tokenizer):
        raise InputError(f"{fill_in.asks}: this model's tokenizer has no tokens to fill in with")
    with encoder(service) as source:
        prompts = [
            fill_in_prompt(
                tokenizer,
                each if isinstance(each, str) else tokenizer.decode(each, skip_special=False),
                fill_in.suffix,
                begun=fill_in.begun,
                files=fill_in.files,
                encode=source.encode,
            )
            for each in asked.prompts
        ]
    return replace(asked, prompts=tuple(prompts))


@contextmanager
def encoder(service: Service, asked: Asked | None = None) -> Iterator[Encoder]:
    """Return the encoder of a session, with a chat's variables of the template. Raises BudgetExceeded."""
    pair = service.pair
    details = service.options.details if asked is None else asked.session_options(service.options, number=0).details
    arguments = template_arguments(
        pair.tokenizer.chat_template.source, details.template_arguments, think=details.template_think
    )
    source = Encoder(
        pair.tokenizer,
        capacity=context_length(service),
        longest=pair.target.card.context,
        budget=pair.budget,
        arguments=arguments,
    )
    try:
        yield source
    finally:
        source.close()
