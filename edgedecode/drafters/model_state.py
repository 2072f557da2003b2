"""A draft model's KV cache in one session, shared by the drafters that use the model."""

from collections.abc import Callable, Sequence

from edgedecode.arrays import FloatArray
from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.decoding.model import AdapterSpan, LanguageModel, State
from edgedecode.decoding.policy import MAX_DRAFT, Plan
from edgedecode.errors import BudgetExceeded, CapabilityError

MOST_NODES = 16
"""Largest draft tree, in nodes; each node is one more row of the target's pass."""
TREE_ROWS = MOST_NODES // 2 + 1
"""Rows of a pass over a tree's level: nodes with children, and the least branches a state must support."""
LEAST_WINDOW = 512
"""Shortest window, in positions: with fewer, a draft model's guesses do not justify its memory."""


def shorter_windows(capacity: int) -> tuple[int, ...]:
    """Return the capacities to try, longest first, if a state of `capacity` positions does not fit the budget.

    A draft model that sees less of a long context guesses nearly as well, and its guesses are verified.
    """
    windows: list[int] = []
    window = LEAST_WINDOW
    while window < capacity:
        windows.insert(0, window)
        window *= 2
    return tuple(windows)


class ModelState:
    """Holds the tokens `_read`, of which the first `_agreed` are known to equal the context's from `_start` on.

    If its capacity is less than the context it holds a window: when that is full, its most recent half is prefilled
    again, which costs about one token of prefill per decoded token.

    It is cropped where it differs from the context, and catches up in chunks when a row is requested (lazy prefill;
    Cascade 2312.11462 prefills eagerly, which delays the first token). tree: rows may branch, and there is no window.
    outgrown: the context may have more tokens than `capacity`.
    """

    at_once = 0
    """As in `Draft`, of the last one."""
    of_head = False
    """Whether its model is a drafting head."""

    def __init__(self, model: LanguageModel, *, capacity: int, tree: bool = False, outgrown: bool = False) -> None:
        self.model = model
        self._users: dict[str, None] = {}
        self._state = self._new_state(min(capacity, model.card.context), tree=tree)
        self._window = self._state.capacity if self._state.capacity < capacity or outgrown else 0
        """Its capacity if the context may outgrow it, else 0."""
        self._read: list[int] = []
        self._start = 0
        self._agreed = 0
        self._span = AdapterSpan()
        self._refused: Callable[[BudgetExceeded], None] | None = None

    def _new_state(self, capacity: int, *, tree: bool) -> State:
        if tree:
            return self.model.new_state(capacity, rows=TREE_ROWS, tree=True)
        *longer, last = capacity, *shorter_windows(capacity)
        for positions in longer:
            try:
                return self.model.new_state(positions)
            except BudgetExceeded:
                continue
        return self.model.new_state(last)

    def nbytes_of(self, user: str) -> int:
        """Return the bytes that count for a drafter: all for the first of its users, 0 for the others."""
        return self._state.nbytes if user == next(iter(self._users), None) else 0

    def join(self, user: str) -> None:
        """Add a drafter, by its name, to the users."""
        self._users[user] = None

    def leave(self, user: str) -> None:
        """Remove a user; close the state after the last one. Idempotent."""
        if [*self._users] == [user]:
            self._state.close()
        self._users.pop(user, None)

    @property
    def used(self) -> bool:
        return bool(self._users)

    @property
    def room(self) -> int:
        """Tokens that it can still hold."""
        return self._state.capacity - len(self._read)

    def begin(self, context: Sequence[int]) -> None:
        """Compare everything read with a context that may be a different one."""
        self._agreed = 0
        self.agree(context)

    def read_with(self, span: AdapterSpan, *, refused: Callable[[BudgetExceeded], None] | None = None) -> None:
        """Read the next context with this adapter; drop positions that were read with another one.

        refused: called if the adapter does not fit the budget at its first use; the context is then read without.
        """
        alike = self._span.shared_with(span)
        if alike is not None:
            self._crop(min(len(self._read), max(0, alike - self._start)))
        self._span, self._refused = span, refused  # last: after an interrupt, the rest is valid for both

    def doubt(self, length: int) -> None:
        """Compare what is read with the context again from this many of its tokens on: they may have changed."""
        self._agreed = max(0, min(self._agreed, length - self._start))

    def agree(self, context: Sequence[int]) -> None:
        """Drop everything from the first token that differs from the context."""
        agreed = self._matching(context)
        if self._start and agreed == 0:  # the window does not match at all
            self._start = 0
        self._crop(agreed)

    def unread(self, context: Sequence[int]) -> int:
        """Return how many tokens of the context must still be prefilled, without changing anything."""
        agreed = self._matching(context)
        if agreed < self._state.oldest_crop:
            agreed = 0
        length = len(context) - (self._start if agreed else 0)
        return self._window // 2 if self._is_full(length) else length - agreed

    def holds_all(self, length: int) -> bool:
        """Return whether it can hold all of a context of this length and the longest draft, not only its end."""
        return self._start == 0 and not self._is_full(length)

    def reach(self, context: Sequence[int], limit: int, plan: Plan) -> int:
        """Return how many tokens may be drafted, at most `limit`; start a new window if needed."""
        self.agree(context)
        unread = len(context) - self._start - len(self._read)
        if 0 < plan.read_max < unread:
            self._restart(len(context) - plan.read_max)
        if self._is_full(len(context) - self._start):
            self._restart(len(context) - self._window // 2)
        return min(limit, self._state.capacity - (len(context) - self._start))

    def catch_up(self, context: Sequence[int]) -> FloatArray:
        """Prefill the rest of a context passed to `agree`; return the logits after its last token, a view."""
        try:
            return self._caught_up(context)
        except BudgetExceeded as error:  # from the adapter, since the state's own memory is leased
            if self._refused is None:
                raise
            self._refused(error)
            self.read_with(AdapterSpan())
            return self._caught_up(context)

    def _caught_up(self, context: Sequence[int]) -> FloatArray:
        if self._start + len(self._read) == len(context):
            self._crop(len(self._read) - 1)
        while True:
            read = self._start + len(self._read)
            plain = self._span.start - read if self._span.use is not None else 0
            if plain <= 0 and len(context) - read <= PREFILL_CHUNK:
                row = self.follow(context[read:])
                self._state.keep(range(len(context) - read))
                return row
            count = min(PREFILL_CHUNK, plain) if plain > 0 else PREFILL_CHUNK
            chunk = context[read : read + count]
            self.model.forward(chunk, self._state, rows="none", adapter=self._span.at(read))
            self._settle(chunk)

    def follow(self, tokens: Sequence[int]) -> FloatArray:
        """Read these tokens, all with one adapter; return the logits after the last one, a view.

        They are pending until the context is known to have them: recurrent layers drop pending rows only at no cost.
        """
        adapter = self._span.at(self._start + len(self._read))
        row: FloatArray = self.model.forward(tokens, self._state, rows="last", adapter=adapter).logits[0]
        self._read += tokens
        return row

    def grow(self, tokens: Sequence[int], *, parents: Sequence[int]) -> FloatArray:
        """Append rows of a tree, pending until `keep`, and return their logits [tokens, rows], a view."""
        return self.model.forward(tokens, self._state, parents=parents, rows="all", adapter=self._span.use).logits

    def keep(self, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep these pending rows, root first, which hold these tokens; drop the others."""
        self._state.keep(path)
        self._read += tokens

    def _matching(self, context: Sequence[int]) -> int:
        """Return how many of the tokens in the state match the context."""
        agreed, end = self._agreed, min(len(self._read), len(context) - self._start)
        while agreed < end and self._read[agreed] == context[self._start + agreed]:
            agreed += 1
        return agreed

    def _is_full(self, length: int) -> bool:
        """Return whether a window with this many positions has no room for the longest draft."""
        return self._window > 0 and length + min(MAX_DRAFT, self._window // 4) > self._window

    def _restart(self, start: int) -> None:
        self._start = start
        self._crop(0)

    def _crop(self, length: int) -> None:
        if length >= self._state.length and self._state.pending:
            try:
                self._state.keep(range(length - self._state.length))
            except CapabilityError:  # recurrent layers have more rows: an interrupt came before those were kept
                self._state.crop(self._state.length)
        else:
            self._state.crop(length if length >= self._state.oldest_crop else 0)
        self._agreed = self._state.length
        del self._read[self._agreed :]

    def _settle(self, tokens: Sequence[int]) -> None:
        self._state.keep(range(len(tokens)))
        self._read += tokens


class ModelStates:
    """The states that a session's drafters share: one per draft model in use."""

    def __init__(self) -> None:
        self._states: list[ModelState] = []

    @property
    def used(self) -> Sequence[ModelState]:
        """The states that have users."""
        return [state for state in self._states if state.used]

    def join(self, model: LanguageModel, user: str, make: Callable[[], ModelState]) -> ModelState:
        """Add a user to the model's state, made for the first one, and return it. Each user must `leave` it."""
        state = next((state for state in self.used if state.model is model), None)
        if state is None:
            state = make()
            self._states.append(state)
        state.join(user)
        return state
