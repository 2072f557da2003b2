"""What a CLI verb is. Verbs register under the entry-point group `edgedecode.commands` and are loaded by name."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Protocol

__all__ = ["Command"]


class Command(Protocol):
    """One verb of the command line. Importing its module must stay light: engines load inside `run`."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str:
        """One line for the list of verbs."""
        ...

    def configure(self, parser: ArgumentParser) -> None:
        """Add the verb's arguments."""
        ...

    def run(self, arguments: Namespace) -> int:
        """Do the work and return the exit code. EdgeDecodeError becomes one line on stderr and exit code 1."""
        ...
