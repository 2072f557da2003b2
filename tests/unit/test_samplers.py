"""Typical p, XTC and DRY: against a direct computation on random rows, with the shared noise, and in sessions."""

import argparse
from dataclasses import replace

import numpy as np
import pytest

from edgedecode import InputError, SamplingOptions, SessionOptions
from edgedecode.apps.verb_options import add_session_options, session_options
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.testing import toy_pair
from tests.toys import ascii_pair, quick_draw, reference_row

SIZE = 40
WARM = SamplingOptions(temperature=0.8)
TYPICAL = replace(WARM, typical_p=0.5)
XTC = replace(WARM, xtc_probability=0.5, xtc_threshold=0.08)
DRY = replace(WARM, dry_multiplier=0.8, dry_sequence_breakers=(2,))
EVERY = {
    "typical": TYPICAL,
    "typical, truncated": replace(TYPICAL, typical_p=0.8, top_p=0.9, min_p=0.02, top_k=20),
    "xtc": XTC,
    "xtc, certain": replace(XTC, xtc_probability=1.0, top_p=0.95),
    "dry": DRY,
    "dry, penalties": replace(DRY, dry_allowed_length=1, repetition_penalty=1.3, frequency_penalty=0.2, top_k=15),
    "all": replace(TYPICAL, xtc_probability=0.3, dry_multiplier=0.5, dry_sequence_breakers=(1,), logit_bias={3: 1.0}),
}
CASES = pytest.mark.parametrize("options", EVERY.values(), ids=EVERY)


def sampler(options: SamplingOptions, tokens: list[int]) -> Sampler:
    made = Sampler(options, vocabulary_size=SIZE, row_draw=quick_draw())
    made.begin(tokens)
    return made


def dense(made: Sampler, row: np.ndarray, path: list[int]) -> np.ndarray:
    probs, found = made.probs(row, path), np.zeros(SIZE)
    found[probs.ids] = probs.p
    return found


def surprising(row: np.ndarray, limit: float, options: SamplingOptions) -> np.ndarray:
    """Return the shares of the tokens that Mirostat's limit in bits keeps, computed directly."""
    p = np.array(reference_row(row, vocabulary=SIZE, options=options, seen=[]))
    kept = -np.log2(np.maximum(p, 1e-300)) <= limit
    if not kept.any():
        kept = p == p.max()
    found: np.ndarray = np.where(kept, p, 0) / p[kept].sum()
    return found


@pytest.mark.parametrize(("tau", "eta", "top_p"), [(1.5, 0.1, 1.0), (2.0, 0.5, 1.0), (0.5, 2.0, 0.9)])
def test_mirostats_limit_follows_the_text_on_a_thousand_random_rows(tau: float, eta: float, top_p: float) -> None:
    rng, noise, limit = np.random.default_rng(5), Noise(6), 2 * tau
    options = replace(WARM, top_p=top_p)
    plain = sampler(replace(options, mirostat=2, mirostat_tau=tau, mirostat_eta=eta), [1, 2])
    drafted = sampler(plain.options, [1, 2])
    path, changed, surprises = list[int](), 0, list[float]()
    for position, row in enumerate((2 * rng.standard_normal((1000, SIZE))).astype(np.float32)):
        wanted = surprising(row, limit, options)
        np.testing.assert_allclose(dense(plain, row, []), wanted, atol=3e-6)
        key = noise.key_at(position)
        token = plain.draw(row, key=key)
        plain.extend([token])
        assert drafted.draw(row, path, key=key, ids=np.arange(SIZE)) == token  # as if all since a while were drafted
        path.append(token)
        if len(path) == 7:
            drafted.extend(path)
            path.clear()
        surprises.append(-np.log2(wanted[token]))
        limit -= eta * (surprises[-1] - tau)
        changed += (wanted > 0).sum() < SIZE
    assert changed > 150
    assert np.mean(surprises[100:]) == pytest.approx(tau, abs=0.15)


@CASES
def test_a_thousand_random_rows_equal_the_direct_computation(options: SamplingOptions) -> None:
    rng, changed = np.random.default_rng(3), 0
    for row in (2 * rng.standard_normal((1000, SIZE + 4))).astype(np.float32):
        prompt, path = rng.integers(0, 4, 14).tolist(), rng.integers(0, 4, 5).tolist()
        made = sampler(options, prompt)
        wanted = reference_row(row, vocabulary=SIZE, options=options, seen=prompt, generated=path)
        np.testing.assert_allclose(found := dense(made, row, path), wanted, atol=3e-6)
        changed += not np.allclose(found, dense(sampler(WARM, prompt), row, path), atol=1e-3)
    assert changed > 150


@CASES
def test_a_draw_is_that_of_the_position_whatever_part_of_the_context_was_drafted(options: SamplingOptions) -> None:
    rng, noise = np.random.default_rng(4), Noise(6)
    for position, row in enumerate((2 * rng.standard_normal((200, SIZE))).astype(np.float32)):
        tokens, key = rng.integers(0, 4, 12).tolist(), noise.key_at(position)
        emitted = sampler(options, tokens[:5])
        emitted.extend(tokens[5:])
        drafted = sampler(options, tokens[:5])
        token = emitted.draw(row, key=key)
        assert token == drafted.draw(row, tokens[5:], key=key)
        assert token == drafted.draw(row, tokens[5:], key=key, ids=np.arange(SIZE))
        assert token == noise.draw_at(drafted.probs(row, tokens[5:], key=key), position)


def test_xtc_spares_the_least_of_the_top_choices_with_its_chance() -> None:
    row, noise = np.log(np.array([0.5, 0.25, 0.15, 0.06, 0.04], np.float32)), Noise(1)
    made = Sampler(SamplingOptions(temperature=1, xtc_probability=0.3), vocabulary_size=5)
    whole, rest = [0.5, 0.25, 0.15, 0.06, 0.04], [0, 0, 0.6, 0.24, 0.16]
    wanted = 0.7 * np.array(whole) + 0.3 * np.array(rest)
    np.testing.assert_allclose(made.probs(row).p, wanted, atol=1e-6)
    draws = [made.draw(row, key=noise.key_at(position)) for position in range(4000)]
    counts = np.bincount(draws, minlength=5)
    assert ((counts - 4000 * wanted) ** 2 / (4000 * wanted)).sum() < 23.5  # 4 degrees of freedom, 0.01%
    excluded = [len(made.probs(row, key=noise.key_at(position)).ids) == 3 for position in range(4000)]
    assert np.mean(excluded) == pytest.approx(0.3, abs=0.03)
    alone = Sampler(SamplingOptions(temperature=1, xtc_probability=1, xtc_threshold=0.4), vocabulary_size=5)
    np.testing.assert_allclose(alone.probs(row).p, whole, atol=1e-6)  # one top choice is no choice


def test_dry_counts_a_long_repetition_up_to_its_limit_and_no_further_back_than_its_window() -> None:
    row = np.zeros(SIZE, np.float32)
    options = replace(WARM, dry_multiplier=1e-9, dry_base=100.0)
    assert sampler(options, [3] * 500).probs(row).of(3) == 0.0  # never below -10,000, and not infinite
    assert sampler(options, [3] * 500).draw(np.where(np.arange(SIZE) == 3, 0, -np.inf).astype(np.float32), key=1) == 3
    near = replace(DRY, dry_penalty_last_n=5)
    repeated = [5, 6, 7, 8, 5, 6]
    assert sampler(near, repeated).probs(row).of(7) == pytest.approx(1 / SIZE)
    assert sampler(DRY, repeated).probs(row).of(7) < 0.6 / SIZE
    assert sampler(replace(DRY, dry_sequence_breakers=(6,)), repeated).probs(row).of(7) == pytest.approx(1 / SIZE)


@pytest.mark.parametrize("drafter", ["model", "suffix", "tree"])
def test_text_with_drafts_is_text_without(drafter: str) -> None:
    def answer(options: SamplingOptions, drafter: str) -> str:
        most = None if drafter == "none" else 4
        with pair.session(SessionOptions(sampling=options, seed=7, drafter=drafter, draft_max=most)) as session:
            made = session.generate("abcabcabcabc", max_tokens=64)
        drafted.append(made.stats.proposed)
        return made.text

    dry = replace(DRY, dry_multiplier=2.0, dry_allowed_length=1, dry_sequence_breakers=("b",))
    mirostat = replace(WARM, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.4)
    drafted, every = list[int](), [replace(options, top_k=4) for options in (WARM, TYPICAL, XTC, dry, mirostat)]
    with ascii_pair() as pair:
        texts = [answer(options, "none") for options in every]
        assert len({*texts}) == 5
        drafted.clear()
        assert [answer(options, drafter) for options in every] == texts
    assert sum(drafted) > 0


def test_breakers_are_the_tokens_that_contain_them() -> None:
    with ascii_pair() as pair:
        ids = pair.tokenizer.ids_containing("b")
        assert ids
        assert all("b" in pair.tokenizer.decode([id]) for id in ids)
        with pair.session(SessionOptions(sampling=replace(DRY, dry_sequence_breakers=("b", "\n")))) as session:
            assert {*ids} <= {*session.sampling.dry_sequence_breakers}
        with pytest.raises(InputError, match="dry_sequence_breakers has 'no such', which no token contains"):
            pair.session(SessionOptions(sampling=replace(DRY, dry_sequence_breakers=("no such",))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"typical_p": 0.0}, r"typical_p 0.0 is out of range: above 0, up to 1 \(off\)"),
        ({"xtc_probability": 1.5}, r"xtc_probability 1.5 is out of range: 0 \(off\) to 1"),
        ({"dry_base": 0.5}, "dry_base 0.5 is out of range: 1 to 100"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers has a text of 0 characters: 1 to 64"),
        ({"dry_sequence_breakers": ("a",) * 129}, "dry_sequence_breakers has 129 texts: up to 128 are allowed"),
    ],
)
def test_wrong_values_are_refused_in_one_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        SamplingOptions(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "breakers"), [(["x", "y"], ("x", "y")), (["none"], ())])
def test_flags_of_breakers_replace_the_defaults(given: list[str], breakers: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    add_session_options(parser)
    arguments = parser.parse_args([word for each in given for word in ("--dry-sequence-breaker", each)])
    arguments.ctx_size = None
    with toy_pair() as pair:
        sampling = session_options(arguments, pair).sampling
    assert sampling is not None
    assert sampling.dry_sequence_breakers == breakers
