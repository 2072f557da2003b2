"""What was learnt of a pack's models on this device: costs, how long drafts live, what model drafters gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .acceptance import Survival
from .cost import CostModel
from .model_arm import ArmLife, ModelArm

__all__ = ["Experience"]


class Experience:
    """Shared by the sessions of a pair, whose rounds may alternate; a scheduler learns in it as it goes."""

    def __init__(
        self,
        costs: CostModel | None = None,
        survival: Survival | None = None,
        arms: Mapping[str, ArmLife] | None = None,
    ) -> None:
        self.costs = costs or CostModel()
        self.survival = survival or Survival()
        self._arms = dict(arms or {})

    def arm(self, name: str) -> ModelArm:
        """Return one session's view of a drafter with a model of its own: what is known of it is shared."""
        return ModelArm(name, self._arms.setdefault(name, ArmLife()))

    def as_dict(self) -> dict[str, object]:
        """Return everything, JSON-serialisable."""
        return {
            "costs": self.costs.as_dict(),
            "survival": self.survival.as_dict(),
            "arms": {name: arm.as_dict() for name, arm in sorted(self._arms.items())},
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Experience:
        """Read what `as_dict` gave. Raises ValueError for anything else: the caller starts afresh."""
        try:
            return cls(
                CostModel.from_dict(value["costs"]),
                Survival.from_dict(value["survival"]),
                {name: ArmLife.from_dict(arm) for name, arm in value["arms"].items()},
            )
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"no experience of a pack: {error}") from None
