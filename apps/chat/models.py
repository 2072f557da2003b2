"""The commands that choose and fetch models: /model and /pull."""

from collections.abc import Mapping

from edgedecode.library.find import find_pack
from edgedecode.memory.sizes import format_nbytes
from edgedecode.text.printable import shown

from .conversation import Conversation


def choose_model(conversation: Conversation, name: str) -> None:
    """Run /model with its argument. Raises as `load`; the conversation then continues as before."""
    if not name:
        present = conversation.pair.manifest.name
        conversation.say_choices({present: "answers now", **model_names(conversation)}, present=present)
        return
    find_pack(name)  # an unknown name is refused before anything is closed
    conversation.use_model(name)
    conversation.say(f"the next answer is by {shown(conversation.pair.manifest.name)}")


def pull_model(conversation: Conversation, name: str) -> None:
    """Run /pull with its argument. Raises ManifestError."""
    from edgedecode.library.named_models import pull

    model, is_new = pull(name)
    how = "pulled" if is_new else f"here already ({model.store})"
    conversation.say(f"{model.name}: {how}, {format_nbytes(model.nbytes, 0)}; /model {model.name} answers with it")


def model_names(conversation: Conversation) -> Mapping[str, str]:
    """Return the names of the models on this machine, and where they lie."""
    from edgedecode.library.stores import stored_models

    return {each.name: f"{each.store}, {format_nbytes(each.nbytes, 0)}" for each in stored_models() if not each.problem}
