"""The kernels of a block of code: neither the environment nor another thread is changed."""

import os
import threading

import pytest

from edgedecode.engines.kernel_choice import KERNELS, engine_kernels, wanted_kernels


def test_a_block_of_code_changes_neither_the_environment_nor_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS, "avx2")
    before, found = dict(os.environ), list[str]()
    with engine_kernels():
        thread = threading.Thread(target=lambda: found.append(wanted_kernels()))
        thread.start()
        thread.join()
        assert (wanted_kernels(), found, dict(os.environ)) == ("engine", ["avx2"], before)
    assert wanted_kernels() == "avx2"
    monkeypatch.delenv(KERNELS)
    assert wanted_kernels() == "auto"
