/** The page: conversations on the left, the chat in the middle, how it was made on the right. */

import { signal, useSignalEffect } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { connect, lookAtMemory, send, stop } from "./answering";
import { Composer, focusComposer } from "./composer";
import { IconButton } from "./icons";
import { Messages } from "./messages";
import { Panel } from "./panel";
import { KeyDialog, Settings, Shortcuts } from "./settings";
import { Sidebar } from "./sidebar";
import { announced, answering, conversation, current, keyWanted, props, running, set, settings, trouble } from "./store";
import { path } from "./tree";

const NARROW = matchMedia("(max-width: 760px)");
const narrow = signal(NARROW.matches);
NARROW.addEventListener("change", () => (narrow.value = NARROW.matches));
const MEMORY_PERIOD = 2000; // milliseconds

export const sidebarOpen = signal(false);
const narrowPanel = signal(false);
const settingsOpen = signal(false);
const helpOpen = signal(false);

export function newChat(): void {
  current.value = "";
  sidebarOpen.value = false;
  focusComposer();
}

function togglePanel(): void {
  if (narrow.value) narrowPanel.value = !narrowPanel.value;
  else set({ panel: !settings.value.panel });
}

function shortcuts(event: KeyboardEvent): void {
  if (event.key === "Escape") {
    if (sidebarOpen.value || narrowPanel.value) sidebarOpen.value = narrowPanel.value = false;
    else stop();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey) {
    const actions: Record<string, () => void> = {
      KeyN: newChat,
      KeyP: togglePanel,
      KeyL: () => (sidebarOpen.value = !sidebarOpen.value),
      KeyS: () => (settingsOpen.value = !settingsOpen.value),
      KeyC: () => set({ colours: !settings.value.colours }),
      Slash: () => (helpOpen.value = !helpOpen.value),
    };
    const action = actions[event.code];
    if (action !== undefined) {
      event.preventDefault();
      action();
    }
  }
}

export function App(): JSX.Element {
  useEffect(() => {
    addEventListener("keydown", shortcuts);
    const timer = setInterval(() => {
      if (document.visibilityState === "visible" && (settings.value.panel || narrowPanel.value) && props.value) void lookAtMemory();
    }, MEMORY_PERIOD);
    return () => {
      removeEventListener("keydown", shortcuts);
      clearInterval(timer);
    };
  }, []);
  useSignalEffect(() => {
    document.title = conversation.value.title ? `${conversation.value.title} · edgedecode` : "edgedecode";
  });
  const panel = narrow.value ? narrowPanel.value : settings.value.panel;
  const last = path(conversation.value).at(-1);
  return (
    <div class={`layout ${panel ? "with-panel" : ""} ${sidebarOpen.value ? "with-sidebar" : ""}`}>
      <a class="skip" href="#message" onClick={(event) => (event.preventDefault(), focusComposer())}>
        Skip to the message field
      </a>
      <Sidebar open={sidebarOpen.value} onClose={() => (sidebarOpen.value = false)} onNew={newChat} />
      <main>
        <header>
          <IconButton icon="menu" label="Conversations" class="menu" expanded={sidebarOpen.value} controls="sidebar" onClick={() => (sidebarOpen.value = !sidebarOpen.value)} />
          <h1>{conversation.value.title || "New chat"}</h1>
          <ModelChoice />
          <IconButton icon="gear" label="Settings" onClick={() => (settingsOpen.value = true)} />
          <IconButton icon="chart" label="How the answer was made" expanded={panel} controls="panel" onClick={togglePanel} />
        </header>
        {trouble.value && (
          <p class="trouble" role="alert">
            {trouble.value}{" "}
            <button type="button" onClick={() => void connect()}>
              Try again
            </button>
          </p>
        )}
        {last === undefined ? <Welcome /> : <Messages />}
        <Composer
          busy={answering.value}
          onStop={() => stop()}
          onSend={(text, files) => void send(text, files, path(conversation.value).at(-1)?.id ?? null)}
        />
      </main>
      {panel && <Panel onClose={togglePanel} />}
      {(sidebarOpen.value || (narrow.value && panel)) && (
        <div class="shade" onClick={() => ((sidebarOpen.value = false), (narrowPanel.value = false))} />
      )}
      <Settings open={settingsOpen} onHelp={() => (helpOpen.value = true)} />
      <Shortcuts open={helpOpen} />
      {keyWanted.value && <KeyDialog />}
      <div class="hidden-text" role="status" aria-live="polite">
        {announced.value}
      </div>
    </div>
  );
}

/** Mode and adapter of the next answer. */
function ModelChoice(): JSX.Element | null {
  const known = props.value;
  if (known === null) return null;
  const modes: Record<string, string> = { "": "Drafting", plain: "Plain", switch: "Switching" };
  const { mode, adapter } = settings.value;
  return (
    <div class="choices">
      <label>
        <span class="hidden-text">Mode</span>
        <select
          title="How answers are decoded: with verified drafts, without drafts, or partly by the draft model alone"
          value={known.modes.includes(mode) ? mode : ""}
          onChange={(event) => set({ mode: event.currentTarget.value })}
        >
          {["", ...known.modes].map((each) => (
            <option key={each} value={each}>
              {modes[each] ?? each}
            </option>
          ))}
        </select>
      </label>
      {known.adapters.length > 0 && (
        <label>
          <span class="hidden-text">Adapter</span>
          <select
            title="LoRA adapter of the target"
            value={known.adapters.includes(adapter) ? adapter : ""}
            onChange={(event) => set({ adapter: event.currentTarget.value })}
          >
            <option value="">No adapter</option>
            {known.adapters.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
        </label>
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
  const busy = Object.keys(running.value).length > 0 && known === null;
  return (
    <section class="welcome">
      <h2>{known === null ? "Connecting…" : `Chat with ${known.name}`}</h2>
      {known !== null && (
        <p>
          It runs on this machine, with {known.engine} ({known.provider}), and remembers up to {known.context} tokens.
          Conversations stay in this browser.
        </p>
      )}
      <ul aria-label="Examples">
        {EXAMPLES.map((text) => (
          <li key={text}>
            <button type="button" disabled={busy || known === null} onClick={() => void send(text, [], null)}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
