"""The native sampler against Python's: the same ids for every option."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedecode.sampling.sampler import Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.native.conftest import Check

ALONE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.6},
    {"top_n_sigma": 1.2},
    {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.6},
    {"presence_penalty": 0.9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "penalty_window": 9},
    {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    {"dry_multiplier": 0.8, "dry_allowed_length": 2, "dry_base": 2.5, "dry_penalty_last_n": 12},
    {"logit_bias": {3: 4.0, 5: -100.0, 8: -2.5}},
    {"temperature": 0.0, "repetition_penalty": 1.2, "dry_multiplier": 0.8, "logit_bias": {1: 2.0}},
]
BREAKERS = (2, 11)
SIZE, PADDING = 60, 4


def mixed(rng: random.Random) -> dict[str, Any]:
    """Return several options at once."""
    found: dict[str, Any] = {"temperature": rng.choice([0.3, 1.0, 1.7])}
    for each in rng.sample(ALONE[2:], 4):
        found |= each
    return found


def options_of(given: dict[str, Any]) -> SamplingOptions:
    return replace(SamplingOptions(**{"temperature": 1.0, **given}), dry_sequence_breakers=BREAKERS)


@pytest.mark.parametrize("size", [SIZE, 3000])
def test_the_same_ids(native_check: Check, size: int) -> None:
    rng, lines, expected = random.Random(size), list[dict[str, Any]](), list[Any]()
    sets = [*ALONE, *(mixed(rng) for _ in range(40 if size == SIZE else 8))]
    for given in sets:
        options = options_of(given)
        ids = sorted(rng.sample(range(size), size // 2)) if rng.random() < 0.3 else []
        known = np.array(ids, np.int64) if ids else None
        sampler = Sampler(options, vocabulary_size=size)
        named = {"temperature": 1.0, **given}
        lines.append({"options": named, "breakers": BREAKERS, "ids": ids, "size": size})
        prompt = [rng.randrange(12) for _ in range(30)]
        lines.append({"begin": prompt, "generated": 7})
        sampler.begin(prompt, generated=7)
        expected += [None, None]
        for _ in range(12 if size == SIZE else 3):
            path: list[int] = []
            for _ in range(rng.randint(1, 4)):
                row = np.float32(np.random.default_rng(rng.randrange(2**32)).normal(0, 3, len(ids) or size + PADDING))
                if rng.random() < 0.3:
                    row = np.round(row)  # equal logits
                if rng.random() < 0.2:
                    row[rng.sample(range(len(row)), len(row) // 2)] = -np.inf
                key = rng.randrange(2**64)
                token = sampler.draw(row, path, key=key, ids=known)
                logits = [None if value == -np.inf else value for value in row.tolist()]
                lines.append({"row": logits, "path": [*path], "key": key})
                expected.append(token)
                path.append(token)
            sampler.extend(path)
            lines.append({"extend": path})
            expected.append(None)
    found = native_check("sampler", lines=lines)
    wrong = [place for place, (native, own) in enumerate(zip(found, expected, strict=True)) if native != own]
    first = next((place for place in reversed(range(wrong[0])) if "options" in lines[place]), 0) if wrong else 0
    assert not wrong, (len(wrong), lines[first])
