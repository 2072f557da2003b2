"""The network that is trained computes, at each depth, what a head computes when it drafts; its loss is the formula."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch

from edgedecode.errors import ExportError
from edgedecode.export.distil import training
from edgedecode.export.distil.acceptance import MOST_DEPTH, Acceptance, Trend, measure
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
        reached, accepted = [0] * MOST_DEPTH, [0] * len(starts)
        for index, start in enumerate(starts):
            for depth in range(MOST_DEPTH):
                place = start + depth
                if place >= POSITIONS or not given.trained[text, place]:
                    break
                if guesses[depth, text, place] != given.rows[text, place, 0]:
                    break
                reached[depth] += 1
                accepted[index] += 1
        assert found[kind] == Acceptance.of(accepted)
        assert found[kind].begun == len(starts)
        assert found[kind].reached == reached


class Clock:
    """Replaces the gradients by the time that they take, in a `Training` of 100 steps an epoch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, depth: int = 3) -> None:
        self.now, self.slower, self.depths = 0.0, lambda done: 1.0, list[int]()
        clock = self

        def gradients(training: Training, texts: Sequence[int], *, depth: int) -> None:
            clock.now += {1: 5, 2: 6, 3: 10}[depth] * clock.slower(training.done)
            clock.depths.append(depth)

        monkeypatch.setattr(training, "monotonic", lambda: self.now)
        monkeypatch.setattr(Training, "_gradients", gradients)
        network = torch.nn.Linear(1, 1)
        network.depth = depth  # type: ignore[assignment]
        batches = SimpleNamespace(epoch=lambda texts, *, seed: [[index] for index in range(100)])
        self.training = Training(network, torch.zeros(1), batches, [0])  # type: ignore[arg-type]
        self.training.plan([[0], [1]])


@pytest.mark.parametrize(("depth", "seconds"), [(3, 400 * 5 + 300 * 6 + 300 * 10), (1, 5000)])
def test_steps_are_planned_by_the_time_of_each_depth(
    depth: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, depth=depth)
    assert clock.depths == [each for each in range(1, depth + 1) for _ in range(2)]
    clock.training.steps = 1000
    assert clock.training.seconds_of(1000) == pytest.approx(seconds)
    assert clock.training.steps_in(seconds) == 1000
    assert clock.training.steps_in(seconds - 1) == 999
    assert clock.training.steps_in(seconds * 2) == 1000
    assert clock.training.steps_in(-1) == 0


@pytest.mark.parametrize(
    ("slower", "steps"),
    [
        (lambda done: 1.0, 1000),
        (lambda done: 5.0 if done < 30 else 1.0, None),  # at the beginning only
        (lambda done: 1.0 if done < 500 else 3.0, None),
        (lambda done: 1.0 if done < 900 else 9.0, None),
    ],
)
def test_a_training_ends_in_time_whatever_the_machine_does(
    slower: Callable[[int], float], steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, rates = Clock(monkeypatch), list[float]()
    made = clock.training
    made.steps, clock.slower, clock.now = 1000, slower, 0.0
    clock.depths.clear()
    until = made.seconds_of(1000)
    for _ in made.run(until=until):
        rates.append(made._optimizer.param_groups[0]["lr"])
    longest = 10 * slower(made.done)
    assert until - 2 * longest <= clock.now <= until + longest or made.done == 1000
    assert made.done == made.steps == len(rates)
    assert steps in (None, made.done)
    assert {*clock.depths} == {1, 2, 3}
    assert rates[-1] < 0.1 * training.RATE, "the rate falls to its end"
    made.steps = 1000
    assert not [*made.run(until=clock.now)][1:], "one step at most is done when the time is over"


def test_a_trend_needs_measurements_that_are_clear() -> None:
    rising = [(1000 * 2**index, 1.5 + 0.2 * index) for index in range(4)]
    trend = Trend.of([*rising, (16000, 2.31)])
    assert trend is not None
    assert trend.at(32000) == pytest.approx(2.5, abs=0.02)
    assert Trend.of(rising[:3]) is None
    assert Trend.of([(tokens, 2.2 + 0.1 * (-1) ** index) for index, (tokens, _) in enumerate(rising)]) is None


def test_a_loss_that_is_not_finite_stops_and_changes_nothing() -> None:
    made, (given, table) = network(), batch()
    given.logs[0, 4] = torch.nan
    batches = SimpleNamespace(epoch=lambda texts, *, seed: [[0, 1]], batch=lambda texts: given)
    run = Training(made, table, batches, [0, 1])  # type: ignore[arg-type]
    run.plan([[0, 1]])
    run.steps, before = 3, {name: each.clone() for name, each in made.state_dict().items()}
    with pytest.raises(ExportError, match="loss of step 1 is not finite"):
        list(run.run())
    assert run.done == 0
    assert all(torch.equal(before[name], each) for name, each in made.state_dict().items())
