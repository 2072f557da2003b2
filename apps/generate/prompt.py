"""Where a prompt comes from: an argument, standard input or a file."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import BinaryIO

from edgedecode import InputError
from edgedecode.text.printable import checked_text, decoded_text

__all__ = ["read_prompt"]

LARGEST_PROMPT_NBYTES = 64 * 2**20
"""No context is this long; a device file or an endless pipe is."""


def read_prompt(arguments: Namespace) -> str:
    """Return the prompt, less one newline at the end of a file or of standard input. Raises InputError or OSError.

    One of blanks alone says nothing to answer; bare text may be so.
    """
    text = _given(arguments)
    if not (text if arguments.raw else text.strip()):
        raise InputError("the prompt is empty: give some text with -p TEXT, --file PATH, or -p - for standard input")
    return text


def _given(arguments: Namespace) -> str:
    if arguments.file is not None:
        with Path(arguments.file).open("rb") as file:
            return _read(file, arguments.file)
    prompt = arguments.prompt_text if arguments.prompt is None else arguments.prompt
    if prompt == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: give the prompt with -p TEXT or --file")
        return _read(sys.stdin.buffer, "standard input")
    return checked_text(prompt, "the prompt")


def _read(file: BinaryIO, name: str) -> str:
    data = file.read(LARGEST_PROMPT_NBYTES + 1)
    if len(data) > LARGEST_PROMPT_NBYTES:
        raise InputError(f"{name} is longer than {LARGEST_PROMPT_NBYTES >> 20} MiB: no model reads that")
    text = decoded_text(data, name).removeprefix("\ufeff")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
