/** The list of conversations, and the search in them. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton } from "./icons";
import { composing, MODIFIER } from "./keys";
import { current, listed, remove, rename, running } from "./store";
import { answerText } from "./tree";
import type { Conversation } from "./types";

interface SidebarProps {
  open: boolean;
  onClose: () => void;
  onNew: () => void;
  onSettings: () => void;
}

/** What is looked for in the conversations. */
const sought = signal("");

/** Whether a conversation's title or one of its messages has the words that are looked for. */
function matches(each: Conversation): boolean {
  const words = sought.value.trim().toLowerCase();
  if (!words) return true;
  const texts = Object.values(each.turns).map((turn) => (turn.role === "user" ? turn.text : answerText(turn)));
  return [each.title, ...texts].some((text) => text.toLowerCase().includes(words));
}

export function Sidebar({ open, onClose, onNew, onSettings }: SidebarProps): JSX.Element {
  const first = useRef<HTMLButtonElement>(null);
  const found = listed.value.filter(matches);
  return (
    <nav id="sidebar" class={`sidebar ${open ? "open" : ""}`} aria-label="Chats">
      <div class="side-head">
        <strong>edgedecode</strong>
        <IconButton icon="close" label="Close the list" class="close" onClick={onClose} />
      </div>
      <button ref={first} type="button" class="new-chat" title={`New chat (${MODIFIER}+N)`} onClick={onNew}>
        <Icon name="plus" /> New chat
      </button>
      <label class="search">
        <Icon name="find" />
        <input
          id="search"
          type="search"
          placeholder="Search"
          aria-label="Search in chats"
          value={sought.value}
          onInput={(event) => (sought.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Escape" || !sought.value) return;
            event.stopPropagation();
            event.preventDefault();
            sought.value = "";
          }}
        />
      </label>
      <ul>
        {found.map((each) => (
          <Entry key={each.id} conversation={each} onChoose={onClose} onGone={() => first.current?.focus()} />
        ))}
      </ul>
      {sought.value.trim() && !found.length && <p class="faint">No chat has “{sought.value.trim()}”.</p>}
      <button type="button" class="entry settings" onClick={onSettings}>
        Settings
      </button>
    </nav>
  );
}

interface EntryProps {
  conversation: Conversation;
  onChoose: () => void;
  /** Called when the entry with the focus is deleted. */
  onGone: () => void;
}

function Entry({ conversation, onChoose, onGone }: EntryProps): JSX.Element {
  const [renaming, setRenaming] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const { id } = conversation;
  const title = conversation.title || "Empty chat";
  const done = (text: string): void => {
    setRenaming(false);
    rename(id, text);
    setTimeout(() => button.current?.focus());
  };
  if (renaming) return <TitleField title={title} onDone={done} />;
  return (
    <li class={current.value === id ? "current" : ""}>
      <button
        ref={button}
        type="button"
        class="entry"
        aria-current={current.value === id ? "page" : undefined}
        onClick={() => {
          current.value = id;
          onChoose();
        }}
      >
        {title}
        {running.value.has(id) && <span class="pulse" aria-label="is being answered" role="img" />}
      </button>
      <IconButton icon="edit" label={`Rename ${title}`} onClick={() => setRenaming(true)} />
      <IconButton
        icon="bin"
        label={`Delete ${title}`}
        onClick={() => {
          if (!confirm(`Delete “${title}”? It is kept nowhere else.`)) return;
          remove(id);
          onGone();
        }}
      />
    </li>
  );
}

function TitleField({ title, onDone }: { title: string; onDone: (text: string) => void }): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  return (
    <li>
      <input
        ref={field}
        aria-label="Title"
        defaultValue={title}
        onBlur={(event) => onDone(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (composing(event)) return;
          if (event.key === "Escape") event.currentTarget.value = title;
          if (event.key === "Escape" || event.key === "Enter") {
            event.stopPropagation();
            event.currentTarget.blur();
          }
        }}
      />
    </li>
  );
}
