/** Dialogs: settings, keyboard shortcuts, the server's key. */

import type { Signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { connect } from "./answering";
import { focusComposer } from "./composer";
import { IconButton } from "./icons";
import { MODIFIER } from "./keys";
import { conversation, key, keyWanted, props, set, setKey, setSystem, settings } from "./store";
import type { NumberName, Theme } from "./types";
import { NUMBER_NAMES } from "./types";

interface DialogProps {
  title: string;
  open: boolean;
  onClose: () => void;
  children: ComponentChildren;
}

function Dialog({ title, open, onClose, children }: DialogProps): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open && !dialog.current?.open) dialog.current?.showModal();
    if (!open) dialog.current?.close();
  }, [open]);
  return (
    <dialog ref={dialog} aria-label={title} onClose={onClose} onKeyDown={(event) => event.key === "Escape" && event.stopPropagation()}>
      {open && (
        <>
          <div class="side-head">
            <h2>{title}</h2>
            <IconButton icon="close" label="Close" onClick={onClose} />
          </div>
          {children}
        </>
      )}
    </dialog>
  );
}

interface NumberRange {
  name: NumberName;
  label: string;
  help: string;
  min: number;
  max: number;
  step: number;
}

const NUMBERS: NumberRange[] = [
  { name: "temperature", label: "Temperature", help: "0: the likeliest token", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top-p", help: "keep this share of the probability", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top-k", help: "keep this number of tokens; 0: all", min: 0, max: 1048576, step: 1 },
  { name: "min_p", label: "Min-p", help: "least share of the likeliest", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", label: "Most tokens", help: "of an answer", min: 1, max: 16777216, step: 1 },
  { name: "seed", label: "Seed", help: "repeats a sampled answer", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

export function Settings({ open, onHelp }: { open: Signal<boolean>; onHelp: () => void }): JSX.Element {
  const { theme, colours } = settings.value;
  return (
    <Dialog title="Settings" open={open.value} onClose={() => (open.value = false)}>
      <label class="wide">
        System prompt of this chat and of new ones
        <textarea rows={3} value={conversation.value.system} onChange={(event) => setSystem(event.currentTarget.value)} />
      </label>
      <fieldset>
        <legend>Sampling</legend>
        {NUMBERS.map((each) => (
          <NumberField key={each.name} {...each} />
        ))}
        <button type="button" onClick={() => set(Object.fromEntries(NUMBER_NAMES.map((name) => [name, null])))}>
          Use the pack's defaults
        </button>
      </fieldset>
      <fieldset>
        <legend>Appearance</legend>
        <label>
          Theme
          <select value={theme} onChange={(event) => set({ theme: event.currentTarget.value as Theme })}>
            <option value="system">As the system</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        <label>
          <input type="checkbox" checked={colours} onChange={(event) => set({ colours: event.currentTarget.checked })} />
          Colour answers by the source of their tokens
        </label>
      </fieldset>
      <p>
        <button type="button" onClick={onHelp}>
          Keyboard shortcuts
        </button>{" "}
        {props.value && <small>{`edgedecode ${props.value.version} · ${props.value.name} · ${props.value.engine}`}</small>}
      </p>
    </Dialog>
  );
}

function NumberField({ name, label, help, min, max, step }: NumberRange): JSX.Element {
  const byPack = name === "max_tokens" ? props.value?.max_tokens : props.value?.sampling[name];
  return (
    <label>
      {label} <small>{help}</small>
      <input
        type="number"
        min={min}
        max={max}
        step={step < 1 ? "any" : step}
        placeholder={byPack === undefined || byPack === null ? "" : String(byPack)}
        value={settings.value[name] ?? ""}
        onChange={(event) => {
          const { value, valueAsNumber } = event.currentTarget;
          const usable = value !== "" && Number.isFinite(valueAsNumber);
          const inside = Math.min(max, Math.max(min, step === 1 ? Math.round(valueAsNumber) : valueAsNumber));
          set({ [name]: usable ? inside : null });
        }}
      />
    </label>
  );
}

const SHORTCUTS: [string, string][] = [
  ["Enter", "send the message"],
  ["Shift+Enter", "start a new line"],
  ["Escape", "stop the answer, or close a drawer"],
  [`${MODIFIER}+N`, "new chat"],
  [`${MODIFIER}+L`, "list of conversations"],
  [`${MODIFIER}+P`, "panel: how the answer was made"],
  [`${MODIFIER}+C`, "colour answers by source"],
  [`${MODIFIER}+S`, "settings"],
  [`${MODIFIER}+/`, "this list"],
];

export function Shortcuts({ open }: { open: Signal<boolean> }): JSX.Element {
  return (
    <Dialog title="Keyboard shortcuts" open={open.value} onClose={() => (open.value = false)}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

/** Asks for the key of a server that wants one. It is kept for this tab only. */
export function KeyDialog(): JSX.Element {
  const [tried, setTried] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <Dialog title="This server needs a key" open onClose={() => (keyWanted.value = "")}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(field.current?.value.trim() ?? "");
          void connect().then(() => {
            setTried(true);
            if (keyWanted.value) field.current?.select();
            else focusComposer();
          });
        }}
      >
        <label class="wide">
          Key, as in the file given with --api-key-file
          <input ref={field} type="password" autocomplete="off" defaultValue={key.value} required />
        </label>
        {tried && keyWanted.value && (
          <p class="trouble" role="alert">
            {keyWanted.value}
          </p>
        )}
        <button type="submit">Use this key</button>
      </form>
    </Dialog>
  );
}
