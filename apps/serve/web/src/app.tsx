/** The page: conversations on the left, the chat in the middle, how it was made on the right. */

import { signal, useSignalEffect } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { connect, lookAtMemory, send, stop } from "./answering";
import { Composer, focusComposer } from "./composer";
import { IconButton } from "./icons";
import { composing, shortcut } from "./keys";
import { Messages } from "./messages";
import { Panel } from "./panel";
import { KeyDialog, Settings, Shortcuts } from "./settings";
import { Sidebar } from "./sidebar";
import { announced, answering, conversation, current, full, keepAll, keyWanted, props, set, settings, trouble } from "./store";
import { path } from "./tree";

const MEMORY_PERIOD = 2000; // milliseconds

/** A media query as a signal. */
function matches(query: string): { readonly value: boolean } {
  const list = matchMedia(query);
  const found = signal(list.matches);
  list.addEventListener("change", () => {
    found.value = list.matches;
    drawer.value = null;
  });
  return found;
}

/** The drawer that is open over the page, where there is no room for it beside the chat. */
const drawer = signal<"sidebar" | "panel" | null>(null);
/** What had the focus before the drawer, which the page behind it then loses. */
let opener: Element | null = null;
const sidebarIsDrawer = matches("(max-width: 1100px)");
const panelIsDrawer = matches("(max-width: 760px)");
const settingsOpen = signal(false);
const helpOpen = signal(false);

function newChat(): void {
  current.value = "";
  drawer.value = null;
  focusComposer();
}

function toggleDrawer(name: "sidebar" | "panel"): void {
  if (drawer.value === null) opener = document.activeElement;
  drawer.value = drawer.value === name ? null : name;
}

function showConversations(): void {
  if (sidebarIsDrawer.value) toggleDrawer("sidebar");
  else document.querySelector<HTMLElement>("#sidebar button")?.focus();
}

function togglePanel(): void {
  if (panelIsDrawer.value) toggleDrawer("panel");
  else set({ panel: !settings.value.panel });
}

const SHORTCUTS: Record<string, () => void> = {
  n: newChat,
  p: togglePanel,
  l: showConversations,
  s: () => (settingsOpen.value = !settingsOpen.value),
  c: () => set({ colours: !settings.value.colours }),
  "/": () => (helpOpen.value = !helpOpen.value),
};

function pressed(event: KeyboardEvent): void {
  if (event.key === "Escape" && !composing(event)) {
    if (drawer.value !== null) drawer.value = null;
    else stop();
  }
  const action = SHORTCUTS[shortcut(event) ?? ""];
  if (action !== undefined) {
    event.preventDefault();
    action();
  }
}

export function App(): JSX.Element {
  const panel = panelIsDrawer.value ? drawer.value === "panel" : settings.value.panel;
  useEffect(() => {
    addEventListener("keydown", pressed);
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void lookAtMemory();
    }, MEMORY_PERIOD);
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
    <div class={`layout ${panel ? "with-panel" : ""}`}>
      <a class="skip" href="#message" onClick={(event) => (event.preventDefault(), focusComposer())}>
        Skip to the message field
      </a>
      <Sidebar open={drawer.value === "sidebar"} onClose={() => (drawer.value = null)} onNew={newChat} />
      <main inert={drawer.value !== null}>
        <header>
          <IconButton icon="menu" label="Conversations" class="menu" expanded={drawer.value === "sidebar"} controls="sidebar" onClick={showConversations} />
          <h1>{conversation.value.title || "New chat"}</h1>
          <ModelChoice />
          <IconButton icon="gear" label="Settings" onClick={() => (settingsOpen.value = true)} />
          <IconButton icon="chart" label="How the answer was made" expanded={panel} controls="panel" onClick={togglePanel} />
        </header>
        {trouble.value && !keyWanted.value && (
          <Notice text={trouble.value} action="Try again" onAction={() => void connect()} onDismiss={() => (trouble.value = "")} />
        )}
        {full.value && (
          <Notice
            text="The browser's storage is full: this is lost when the page closes. Delete conversations to make room."
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
      {panel && <Panel onClose={togglePanel} />}
      {drawer.value !== null && <div class="shade" onClick={() => (drawer.value = null)} />}
      <Settings open={settingsOpen} onHelp={() => (helpOpen.value = true)} />
      <Shortcuts open={helpOpen} />
      {keyWanted.value && <KeyDialog />}
      <div class="hidden-text" role="status" aria-live="polite">
        {announced.value}
      </div>
    </div>
  );
}

/** Move the focus into a drawer when it opens, and back when it closes. */
function useDrawerFocus(): void {
  const open = drawer.value;
  useEffect(() => {
    if (open !== null) document.querySelector<HTMLElement>(`#${open} .close`)?.focus();
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

const MODES: Record<string, string> = { "": "Drafting", plain: "Plain", switch: "Switching" };

/** Mode and adapter of the next answer. */
function ModelChoice(): JSX.Element | null {
  const known = props.value;
  if (known === null) return null;
  const { mode, adapter } = settings.value;
  const modes = known.modes.filter((each) => each !== known.mode);
  return (
    <div class="choices">
      <select
        aria-label="Mode"
        title="How answers are decoded: with verified drafts, without drafts, or partly by the draft model alone"
        value={modes.includes(mode) ? mode : ""}
        onChange={(event) => set({ mode: event.currentTarget.value })}
      >
        {["", ...modes].map((each) => (
          <option key={each} value={each}>
            {MODES[each || known.mode] ?? each}
          </option>
        ))}
      </select>
      {known.adapters.length > 0 && (
        <select
          aria-label="Adapter"
          title="LoRA adapter of the target"
          value={known.adapters.includes(adapter) ? adapter : ""}
          onChange={(event) => set({ adapter: event.currentTarget.value })}
        >
          <option value="">{known.adapter ?? "No adapter"}</option>
          {known.adapters
            .filter((each) => each !== known.adapter)
            .map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
        </select>
      )}
    </div>
  );
}

const EXAMPLES = [
  "Tell me a story about a fox and a lighthouse.",
  "How many days are in a week?",
  "Write a Python function that returns the larger of two numbers.",
];

function Welcome(): JSX.Element {
  const known = props.value;
  return (
    <section class="welcome">
      <h2>{known !== null ? `Chat with ${known.name}` : trouble.value ? "Not connected" : "Connecting…"}</h2>
      {known !== null && (
        <p>
          It runs on this machine, with {known.engine} ({known.provider}), and remembers up to {known.context} tokens.
          Conversations stay in this browser.
        </p>
      )}
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
