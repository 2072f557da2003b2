"""The network that is trained computes, at each depth, what a head computes when it drafts; its loss is the formula."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch

from edgedecode.export.distil import training
from edgedecode.export.distil.acceptance import MOST_DEPTH, measure
from edgedecode.export.distil.batches import Batch
from edgedecode.export.distil.kinds.head_network import HeadNetwork, HeadSizes
from edgedecode.export.distil.top_loss import TopLoss
from edgedecode.export.distil.training import Training, draft_loss
from tests.export.heads.written import Reference, TinyHead

pytestmark = pytest.mark.export
HEAD = TinyHead()
POSITIONS, DEPTH = 12, 4


def network() -> HeadNetwork:
    """Return the network of a random head."""
    sizes = HeadSizes(
        HEAD.hidden, HEAD.heads, HEAD.kv_heads, HEAD.head_size, HEAD.mlp, HEAD.rows, HEAD.epsilon, HEAD.theta
    )
    made = HeadNetwork(sizes)
    assert sum(each.numel() for each in made.parameters()) == sizes.parameters
    weights = HEAD.tensors()
    made.load_state_dict({f"layers.0{name}" if name[0] == "." else name: each for name, each in weights.items()})
    return made


def inputs(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features and next tokens of two texts, the second shorter, and the target's embedding."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(2, POSITIONS, 3 * HEAD.hidden, generator=random)
    tokens = torch.randint(0, HEAD.vocabulary, (2, POSITIONS), generator=random)
    return features, tokens, torch.randn(HEAD.vocabulary, HEAD.hidden, generator=random)


def test_each_depth_is_a_draft_of_the_formula() -> None:
    features, tokens, table = inputs()
    lengths = torch.tensor([POSITIONS, POSITIONS - 3])
    made = network()
    with torch.inference_mode():
        found = [made.lm_head(each) for each in made.depths(features, table[tokens], lengths, depth=DEPTH)]
    for text, length in enumerate(lengths.tolist()):
        reference = Reference(HEAD, table)
        for start in range(length - DEPTH):
            logits, after = reference.read(features[text, start : start + 1], [int(tokens[text, start])])
            rows = [logits[0]]
            for depth in range(1, DEPTH):
                logits, after = reference.step(after, [int(tokens[text, start + depth])])
                rows.append(logits[0])
            reference.crop(start + 1)
            for depth, row in enumerate(rows):
                torch.testing.assert_close(found[depth][text, start + depth], row, atol=2e-4, rtol=2e-4)


def test_the_loss_and_its_gradients_are_those_of_all_logits() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(2100, 32, requires_grad=True), torch.randn(200, 32, requires_grad=True)
    ids = torch.stack([torch.randperm(200)[:6] for _ in range(2100)])
    shares = torch.rand(2100, 6) / 6
    shares[:, 2] = 0
    shares[5], ids[7, 2] = 0, int(ids[7, 1])
    TopLoss.apply(hidden, weight, ids, shares).backward()
    found = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    (-(shares * torch.log_softmax(hidden @ weight.T, -1).gather(1, ids)).sum()).backward()
    for ours, wanted in zip(found, (hidden.grad, weight.grad), strict=True):
        assert (ours - wanted).norm() < 0.02 * wanted.norm()  # bfloat16


def batch() -> tuple[Batch, torch.Tensor]:
    features, tokens, table = inputs()
    random = torch.Generator().manual_seed(5)
    trained = torch.zeros(2, POSITIONS, dtype=torch.bool)
    trained[0, 3:], trained[1, 2 : POSITIONS - 3] = True, True
    rows = torch.stack([torch.randperm(HEAD.rows + 1, generator=random)[:5] for _ in range(2 * POSITIONS)])
    logs = torch.log_softmax(torch.randn(2, POSITIONS, 5, generator=random), -1)
    lengths = torch.tensor([POSITIONS, POSITIONS - 3])
    tokens = torch.cat([tokens[:, :1], tokens], 1)
    return Batch(features.bfloat16(), tokens, lengths, trained, trained, rows.view(2, POSITIONS, 5), logs), table


def test_padding_changes_no_loss() -> None:
    made, (given, table) = network(), batch()
    loss = draft_loss(made, table, given, depth=DEPTH)
    given.features[1, POSITIONS - 3 :] = 9
    given.tokens[1, POSITIONS - 2 :] = 1
    assert draft_loss(made, table, given, depth=DEPTH) == loss


def test_acceptance_counts_drafts_whose_tokens_are_all_the_likeliest() -> None:
    made, (given, table) = network(), batch()

    class One:
        def epoch(self, texts: object, *, seed: int) -> list[list[int]]:
            return [[0, 1]]

        def batch(self, texts: object) -> Batch:
            return given

    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        outputs = list(made.depths(given.features, table[given.next_tokens], given.lengths, depth=MOST_DEPTH))
        guesses = torch.stack([made.lm_head(each).argmax(-1) for each in outputs])
    given.rows[..., 0] = torch.where(torch.rand(2, POSITIONS) < 0.7, guesses[0], given.rows[..., 0])
    found = measure(made, table, One(), {0: "code", 1: "math"})
    for text, kind in enumerate(("code", "math")):
        starts = given.trained[text].nonzero().flatten().tolist()
        reached = [0] * MOST_DEPTH
        for start in starts:
            for depth in range(MOST_DEPTH):
                place = start + depth
                if place >= POSITIONS or not given.trained[text, place]:
                    break
                if guesses[depth, text, place] != given.rows[text, place, 0]:
                    break
                reached[depth] += 1
        assert found[kind].begun == len(starts)
        assert found[kind].reached == reached
        assert found[kind].length(2) == pytest.approx(1 + sum(reached[:2]) / len(starts))


@pytest.mark.parametrize(("depth", "mean"), [(3, 0.4 * 5 + 0.3 * 6 + 0.3 * 10), (1, 5.0)])
def test_steps_are_planned_by_the_time_of_each_depth(depth: int, mean: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = 0.0, []

    def gradients(self: Training, texts: Sequence[int], *, depth: int) -> None:
        nonlocal now
        now += {1: 5, 2: 6, 3: 10}[depth]
        tried.append(depth)

    monkeypatch.setattr(training, "monotonic", lambda: now)
    monkeypatch.setattr(Training, "_gradients", gradients)
    made = object.__new__(Training)
    made.network = SimpleNamespace(depth=depth)  # type: ignore[assignment]
    made._optimizer = SimpleNamespace(zero_grad=lambda: None)  # type: ignore[assignment]
    assert made.step_seconds([[0], [1]]) == pytest.approx(mean)
    assert tried == [each for each in range(1, depth + 1) for _ in range(2)]
