"""The held-out prompts that come with the package: `prompts.jsonl`; prompts.md states their origin."""

from importlib.resources import files

from edgedecode.text.prompts import Prompt, parse_prompts


def bundled_prompts() -> list[Prompt]:
    """Return 20 prompts of each of 12 task families."""
    return parse_prompts(files(__package__).joinpath("prompts.jsonl").read_bytes(), "the bundled prompts")
