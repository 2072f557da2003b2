"""A model that runs as another one: with other tokens, or for one of several users."""

from collections.abc import Callable, Sequence

from .model import AdapterUse, LanguageModel, Output, RowRequest, State


class WrappedModel:
    """Runs another model. closed: called once, when this one is closed."""

    def __init__(self, model: LanguageModel, *, closed: Callable[[], None]) -> None:
        self._model, self._closed, self.card = model, closed, model.card

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        return self._model.new_state(capacity, rows=rows, tree=tree)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        return self._model.forward(tokens, state, parents=parents, rows=rows, adapter=adapter)

    def close(self) -> None:
        closed, self._closed = self._closed, lambda: None
        closed()
