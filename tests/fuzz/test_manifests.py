"""Manifests with hostile values: shown, verified and run."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from .hostile import Edit, Splice, edited, edits
from .packs import answer_words, base_manifest, write_pack
from .running import BUDGET_NBYTES, INPUTS, Fuzz, fuzzed


def test_fuzz_suite_tries_at_least_500_inputs() -> None:
    assert sum(INPUTS.values()) >= 500


def test_generate_with_the_valid_pack_answers(fuzz: Fuzz) -> None:
    """Otherwise every input might be refused for the same reason."""
    pack = write_pack(fuzz.fresh() / "pack")
    assert fuzz.check(*answer_words(pack), limit=BUDGET_NBYTES).code == 0
    assert fuzz.check("show", str(pack), "--verify", plain=True).code == 0


@fuzzed("manifests")
@given(changes=edits(base_manifest()), verb=st.sampled_from(["show", "verify", "generate"]))
def test_commands_with_a_hostile_manifest_end_in_one_line_or_an_answer(
    fuzz: Fuzz, changes: Sequence[Edit | Splice], verb: str
) -> None:
    pack = write_pack(fuzz.fresh() / "pack", raw=edited(base_manifest(), changes))
    if verb == "generate":
        fuzz.check(*answer_words(pack), limit=BUDGET_NBYTES)
    else:
        fuzz.check("show", str(pack), *(["--verify"] if verb == "verify" else []), plain=True)
