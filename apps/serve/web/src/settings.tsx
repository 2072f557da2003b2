/** Two dialogs: the settings of a chat, and those of the page. */

import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { Dialog } from "./dialog";
import { asMarkdown, exported, imported, saveFile } from "./files";
import { copy } from "./messages";
import { change, conversation, conversations, current, listed, model, props, set, settings } from "./store";
import { DEFAULTS } from "./stored";
import type { NumberName, Options, Theme } from "./types";
import { counted } from "./words";

interface NumberRange {
  name: NumberName;
  label: string;
  help: string;
  min: number;
  max: number;
  step: number;
}

const NUMBERS: NumberRange[] = [
  { name: "temperature", label: "Temperature", help: "0: the most likely token", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top-p", help: "share of the probability", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top-k", help: "number of tokens; 0: all", min: 0, max: 1048576, step: 1 },
  { name: "min_p", label: "Min-p", help: "least share of the best", min: 0, max: 1, step: 0.01 },
  { name: "max_tokens", label: "Max tokens", help: "in one answer", min: 1, max: 16777216, step: 1 },
  { name: "seed", label: "Seed", help: "repeats an answer", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];
const MODES: Record<string, string> = {
  "": "Auto: drafts where they pay",
  plain: "Plain: no drafts",
  switch: "Switch: partly by the draft model alone",
};

export function ChatSettings({ open }: { open: Signal<boolean> }): JSX.Element {
  const { system, options } = conversation.value;
  const stored = conversations.value.has(current.value);
  const byServer = model.value?.name === props.value?.name ? (props.value?.mode ?? "") : "";
  const modes = model.value?.modes.filter((each) => each !== byServer) ?? [];
  return (
    <Dialog title={stored ? "Settings of this chat" : "Settings of new chats"} open={open.value} onClose={() => (open.value = false)}>
      <label class="wide">
        System prompt
        <textarea rows={3} value={system} onInput={(event) => change({ system: event.currentTarget.value })} />
      </label>
      <fieldset class="numbers">
        <legend>Sampling</legend>
        {NUMBERS.map((each) => (
          <NumberField key={each.name} {...each} />
        ))}
      </fieldset>
      <fieldset>
        <legend>Answer</legend>
        <Choice name="format" label="Form" values={{ "": "Text", json: "JSON", schema: "JSON by a schema" }} />
        {options.format === "schema" && <Schema />}
        <Choice name="think" label="Thinking" values={{ "": "As the model has it", on: "On", low: "Up to 256 tokens", medium: "Up to 1,024 tokens", high: "Up to 4,096 tokens", off: "Off" }} />
        <Choice
          name="mode"
          label="Decoding"
          values={{ "": MODES[byServer] ?? byServer, ...Object.fromEntries(modes.map((each) => [each, MODES[each] ?? each])) }}
        />
        {(model.value?.adapters.length ?? 0) > 0 && (
          <Choice
            name="adapter"
            label="Adapter"
            values={{ "": "None", ...Object.fromEntries((model.value?.adapters ?? []).map((each) => [each, each])) }}
          />
        )}
      </fieldset>
      <p class="buttons">
        <button type="button" onClick={() => change({ system: "", options: { ...DEFAULTS, model: options.model } })}>
          Reset
        </button>
        {stored && (
          <>
            <button type="button" onClick={() => saveFile(exported([conversation.value]), "chat")}>
              Export this chat
            </button>
            <button type="button" onClick={() => void copy(asMarkdown(conversation.value))}>
              Copy as Markdown
            </button>
          </>
        )}
      </p>
      <p class="faint">Changes are kept as you type. The next answer follows them.</p>
    </Dialog>
  );
}

type ChoiceName = "format" | "think" | "mode" | "adapter";

function Choice({ name, label, values }: { name: ChoiceName; label: string; values: Record<string, string> }): JSX.Element {
  const value = conversation.value.options[name];
  return (
    <label>
      {label}
      <select
        aria-label={label}
        value={value in values ? value : ""}
        onChange={(event) => change({ options: { [name]: event.currentTarget.value } as Partial<Options> })}
      >
        {Object.entries(values).map(([each, text]) => (
          <option key={each} value={each}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

function Schema(): JSX.Element {
  const { schema } = conversation.value.options;
  const wrong = schemaError(schema);
  return (
    <label class="wide">
      JSON schema
      <textarea
        rows={6}
        class="source-code"
        spellcheck={false}
        placeholder={'{"type": "object", "properties": {"city": {"type": "string"}}}'}
        aria-invalid={wrong !== ""}
        aria-describedby="schema-error"
        value={schema}
        onInput={(event) => change({ options: { schema: event.currentTarget.value } })}
      />
      <small id="schema-error" class={wrong && "wrong"}>
        {wrong || "Answers follow it."}
      </small>
    </label>
  );
}

function schemaError(schema: string): string {
  try {
    const value: unknown = JSON.parse(schema);
    return typeof value === "object" && value !== null ? "" : "A schema is a JSON object.";
  } catch (error) {
    return schema.trim() ? `Not JSON: ${error instanceof Error ? error.message : error}` : "Write a JSON schema.";
  }
}

function NumberField({ name, label, help, min, max, step }: NumberRange): JSX.Element {
  const [typed, setTyped] = useState<string | null>(null); // null: what is set
  const [wrong, setWrong] = useState(false);
  const own = model.value?.name === props.value?.name; // the server tells the defaults of one model
  const byPack = name === "max_tokens" ? props.value?.max_tokens : props.value?.sampling[name];
  return (
    <label>
      {label}
      <input
        type="number"
        aria-label={label}
        min={min}
        max={max}
        step={step < 1 ? "any" : step}
        placeholder={!own || byPack === undefined || byPack === null ? "" : String(byPack)}
        value={typed ?? conversation.value.options[name] ?? ""}
        aria-invalid={wrong}
        onBlur={() => {
          setTyped(null);
          setWrong(false);
        }}
        onInput={(event) => {
          const { value, valueAsNumber, validity } = event.currentTarget;
          setTyped(value);
          setWrong(!validity.valid);
          if (validity.valid) change({ options: { [name]: value === "" ? null : valueAsNumber } });
        }}
      />
      <small class={wrong ? "wrong" : ""}>{wrong ? `from ${min} to ${max}` : help}</small>
    </label>
  );
}

interface SettingsProps {
  open: Signal<boolean>;
  onHelp: () => void;
}

export function Settings({ open, onHelp }: SettingsProps): JSX.Element {
  const { theme, sources } = settings.value;
  const [said, setSaid] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  return (
    <Dialog title="Settings" open={open.value} onClose={() => (open.value = false)}>
      <fieldset>
        <legend>Appearance</legend>
        <label>
          Theme
          <select value={theme} onChange={(event) => set({ theme: event.currentTarget.value as Theme })}>
            <option value="system">System</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={sources} onChange={(event) => set({ sources: event.currentTarget.checked })} />
          Show sources in the text
        </label>
      </fieldset>
      <fieldset>
        <legend>Chats</legend>
        <p class="faint">{counted(listed.value.length, "chat")}, kept in this browser alone.</p>
        <p class="buttons">
          <button type="button" disabled={!listed.value.length} onClick={() => saveFile(exported(listed.value), "chats")}>
            Export all
          </button>
          <button type="button" onClick={() => picker.current?.click()}>
            Import…
          </button>
          <input
            ref={picker}
            type="file"
            hidden
            multiple
            accept=".json,application/json"
            aria-label="Files with chats"
            onChange={(event) => {
              const files = [...(event.currentTarget.files ?? [])];
              event.currentTarget.value = "";
              void Promise.all(files.map(imported)).then((lines) => setSaid(lines.join(" ")));
            }}
          />
        </p>
        {said && <p role="alert">{said}</p>}
      </fieldset>
      <p class="buttons">
        <button type="button" onClick={onHelp}>
          Keyboard
        </button>
      </p>
      {props.value && <p class="faint">{`edgedecode ${props.value.version}${props.value.engine && ` · ${props.value.engine} (${props.value.provider})`}`}</p>}
    </Dialog>
  );
}
