/** The page: the chat, and the list of conversations beside it. */

import { signal, useSignalEffect } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { answerAgain, connect, send, stop } from "./answering";
import { Composer, focusComposer } from "./composer";
import { toggleDetails } from "./details";
import { KeyDialog, Shortcuts } from "./dialog";
import { Icon, IconButton } from "./icons";
import { composing, MODIFIER, shortcut } from "./keys";
import { Messages } from "./messages";
import { Picker, PICKER } from "./picker";
import { ChatSettings, Settings } from "./settings";
import { Sidebar } from "./sidebar";
import { announced, answering, conversation, current, full, keepAll, keyWanted, model, set, settings, trouble } from "./store";
import { path } from "./tree";
import { grouped } from "./words";

const RETRY_PERIOD = 2000; // milliseconds

/** A media query as a signal. */
function matches(query: string): { readonly value: boolean } {
  const list = matchMedia(query);
  const found = signal(list.matches);
  list.addEventListener("change", () => {
    found.value = list.matches;
    drawer.value = false;
  });
  return found;
}

/** Whether the list is open over the page, where there is no room for it beside the chat. */
const drawer = signal(false);
const narrow = matches("(max-width: 860px)");
/** What had the focus before the drawer, which the page behind it then loses. */
let opener: Element | null = null;
const chatSettingsOpen = signal(false);
const settingsOpen = signal(false);
const helpOpen = signal(false);

function newChat(): void {
  current.value = "";
  drawer.value = false;
  focusComposer();
}

function toggleSidebar(): void {
  if (!narrow.value) return set({ sidebar: !settings.value.sidebar });
  if (!drawer.value) opener = document.activeElement;
  drawer.value = !drawer.value;
}

function search(): void {
  if (narrow.value ? !drawer.value : !settings.value.sidebar) toggleSidebar();
  setTimeout(() => document.getElementById("search")?.focus());
}

const SHORTCUTS: Record<string, () => void> = {
  n: newChat,
  l: search,
  m: () => document.getElementById(PICKER)?.togglePopover(),
  s: () => (chatSettingsOpen.value = !chatSettingsOpen.value),
  r: answerAgain,
  i: () => toggleDetails(path(conversation.value).findLast((turn) => turn.answer !== null)?.id ?? ""),
  c: () => set({ sources: !settings.value.sources }),
  "/": () => (helpOpen.value = !helpOpen.value),
};

function pressed(event: KeyboardEvent): void {
  if (event.key === "Escape" && !composing(event)) {
    if (drawer.value) drawer.value = false;
    else if (document.querySelector(":popover-open") === null) stop();
  }
  const action = SHORTCUTS[shortcut(event) ?? ""];
  if (action !== undefined) {
    event.preventDefault();
    action();
  }
}

export function App(): JSX.Element {
  const beside = !narrow.value && settings.value.sidebar;
  useEffect(() => {
    addEventListener("keydown", pressed);
    const timer = setInterval(() => {
      if (trouble.value && !keyWanted.value && document.visibilityState === "visible") void connect();
    }, RETRY_PERIOD);
    return () => {
      removeEventListener("keydown", pressed);
      clearInterval(timer);
    };
  }, []);
  useSignalEffect(() => {
    document.title = conversation.value.title ? `${conversation.value.title} · edgedecode` : "edgedecode";
  });
  useDrawerFocus();
  const last = path(conversation.value).at(-1);
  return (
    <div class={`layout ${beside ? "beside" : ""}`}>
      <a class="skip" href="#message" onClick={(event) => (event.preventDefault(), focusComposer())}>
        Skip to the message field
      </a>
      {(beside || narrow.value) && (
        <Sidebar
          open={drawer.value}
          onClose={() => (drawer.value = false)}
          onNew={newChat}
          onSettings={() => {
            drawer.value = false;
            settingsOpen.value = true;
          }}
        />
      )}
      <main inert={drawer.value}>
        <header>
          <h1 class="hidden-text">{conversation.value.title || "New chat"}</h1>
          <IconButton icon="menu" label="Chats" expanded={beside || drawer.value} controls="sidebar" onClick={toggleSidebar} />
          <Picker />
          <button type="button" class="quiet" onClick={() => (chatSettingsOpen.value = true)} aria-label="Chat settings" title={`Chat settings (${MODIFIER}+S)`}>
            <Icon name="gear" /> <span>Chat settings</span>
          </button>
          {!beside && (
            <button type="button" class="quiet" onClick={newChat} aria-label="New chat" title="New chat">
              <Icon name="plus" /> <span>New chat</span>
            </button>
          )}
        </header>
        {trouble.value && !keyWanted.value && (
          <Notice text={trouble.value} action="Try again" onAction={() => void connect()} onDismiss={() => (trouble.value = "")} />
        )}
        {full.value && (
          <Notice
            text="The browser's storage is full: this is lost when the page closes. Delete chats to make room."
            action="Keep again"
            onAction={keepAll}
            onDismiss={() => (full.value = false)}
          />
        )}
        {last === undefined ? <Welcome /> : <Messages />}
        <Composer
          busy={answering.value}
          onStop={stop}
          onSend={(text, files) => void send(text, files, path(conversation.value).at(-1)?.id ?? null)}
        />
      </main>
      {drawer.value && <div class="shade" onClick={() => (drawer.value = false)} />}
      <ChatSettings open={chatSettingsOpen} />
      <Settings open={settingsOpen} onHelp={() => (helpOpen.value = true)} />
      <Shortcuts open={helpOpen} />
      {keyWanted.value && <KeyDialog />}
      <div class="hidden-text" role="status" aria-live="polite">
        {announced.value}
      </div>
    </div>
  );
}

/** Move the focus into the drawer when it opens, and back when it closes. */
function useDrawerFocus(): void {
  const open = drawer.value;
  useEffect(() => {
    if (open) document.querySelector<HTMLElement>("#sidebar .close")?.focus();
    else if (document.activeElement === document.body && opener instanceof HTMLElement) opener.focus();
  }, [open]);
}

interface NoticeProps {
  text: string;
  action: string;
  onAction: () => void;
  onDismiss: () => void;
}

function Notice({ text, action, onAction, onDismiss }: NoticeProps): JSX.Element {
  return (
    <p class="trouble" role="alert">
      {text}
      <button type="button" onClick={onAction}>
        {action}
      </button>
      <IconButton icon="close" label="Dismiss" onClick={onDismiss} />
    </p>
  );
}

const LOCAL = /^(localhost|127\..*|\[::1\])$/.test(location.hostname);

const EXAMPLES = [
  "Tell me a story about a fox and a lighthouse.",
  "How many days are in a week?",
  "Write a Python function that returns the larger of two numbers.",
];

function Welcome(): JSX.Element {
  const known = model.value;
  return (
    <section class="welcome">
      <h2>{known !== null ? `Chat with ${known.name}` : trouble.value ? "Not connected" : "Connecting…"}</h2>
      {known !== null && <p class="faint">runs on {LOCAL ? "this computer" : location.hostname} · {grouped(known.context)} tokens of context</p>}
      <ul aria-label="Examples">
        {EXAMPLES.map((text) => (
          <li key={text}>
            <button
              type="button"
              disabled={known === null}
              onClick={() => {
                focusComposer();
                void send(text, [], null);
              }}
            >
              {text}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
