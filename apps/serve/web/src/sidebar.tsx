/** The list of conversations. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { Icon, IconButton } from "./icons";
import { current, listed, remove, rename, running } from "./store";
import type { Conversation } from "./types";

const renamed = signal("");

interface SidebarProps {
  open: boolean;
  onClose: () => void;
  onNew: () => void;
}

export function Sidebar({ open, onClose, onNew }: SidebarProps): JSX.Element {
  return (
    <nav id="sidebar" class={`sidebar ${open ? "open" : ""}`} aria-label="Conversations">
      <div class="side-head">
        <strong>edgedecode</strong>
        <IconButton icon="close" label="Close the conversations" class="close" onClick={onClose} />
      </div>
      <button type="button" class="new-chat" title="New chat (Alt+N)" onClick={onNew}>
        <Icon name="plus" /> New chat
      </button>
      <ul>
        {listed.value.map((each) => (
          <Entry key={each.id} conversation={each} onChoose={onClose} />
        ))}
      </ul>
    </nav>
  );
}

function Entry({ conversation, onChoose }: { conversation: Conversation; onChoose: () => void }): JSX.Element {
  const { id } = conversation;
  const title = conversation.title || "Empty chat";
  if (renamed.value === id) {
    const done = (text: string): void => {
      rename(id, text);
      renamed.value = "";
    };
    return (
      <li>
        <input
          aria-label="Title"
          autofocus
          ref={(field) => field?.focus()}
          defaultValue={title}
          onBlur={(event) => done(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") done(event.currentTarget.value);
            if (event.key === "Escape") renamed.value = "";
            event.stopPropagation();
          }}
        />
      </li>
    );
  }
  return (
    <li class={current.value === id ? "current" : ""}>
      <button
        type="button"
        class="entry"
        aria-current={current.value === id ? "page" : undefined}
        onClick={() => {
          current.value = id;
          onChoose();
        }}
      >
        {title}
        {id in running.value && <span class="pulse" aria-label="is being answered" role="img" />}
      </button>
      <IconButton icon="edit" label={`Rename ${title}`} onClick={() => (renamed.value = id)} />
      <IconButton
        icon="bin"
        label={`Delete ${title}`}
        onClick={() => {
          if (confirm(`Delete “${title}”? It is kept nowhere else.`)) remove(id);
        }}
      />
    </li>
  );
}
