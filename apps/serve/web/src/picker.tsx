/** The header's choice of the model, and the download of others. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { lookAtModels, pull } from "./answering";
import { focusComposer } from "./composer";
import { Icon } from "./icons";
import { MODIFIER } from "./keys";
import { announce, chooseModel, model, models, props } from "./store";
import { grouped } from "./words";

export const PICKER = "models";

export function Picker(): JSX.Element {
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const chosen = model.value;
  return (
    <>
      <button
        ref={button}
        type="button"
        class="picker"
        aria-label={`Model: ${chosen?.name ?? "none"}`}
        title={`Model (${MODIFIER}+M)`}
        popovertarget={PICKER}
        disabled={chosen === null}
      >
        <span>{chosen?.name ?? "edgedecode"}</span>
        <Icon name="more" />
      </button>
      <div
        id={PICKER}
        ref={list}
        popover="auto"
        class="models"
        role="group"
        aria-label="Models"
        onBeforeToggle={() => {
          void lookAtModels();
          const place = button.current?.getBoundingClientRect();
          if (place && list.current) list.current.style.left = `${place.left}px`;
        }}
      >
        {models.value.map((each) => (
          <button
            class="option"
            key={each.name}
            type="button"
            aria-pressed={each === chosen}
            onClick={() => {
              chooseModel(each.name);
              list.current?.hidePopover();
              focusComposer();
            }}
          >
            <span>{each.name}</span>
            <small>{grouped(each.context)} tokens of context</small>
          </button>
        ))}
        {props.value?.library ? <Download /> : models.value.length === 1 && <p class="faint">The server was started with this model alone.</p>}
      </div>
    </>
  );
}

/** The download that runs, which goes on while the list is closed. */
const download = signal<{ status: string; done: number; hide: AbortController } | null>(null);
const refused = signal("");

async function start(name: string): Promise<void> {
  const hide = new AbortController();
  refused.value = "";
  download.value = { status: "asking for it", done: 0, hide };
  try {
    await pull(name, hide.signal, (status, done) => (download.value = { status, done, hide }));
    announce(`${name} is here.`);
  } catch (error) {
    if (!hide.signal.aborted) announce((refused.value = error instanceof Error ? error.message : String(error)));
  } finally {
    download.value = null;
  }
}

function Download(): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const now = download.value;
  if (now !== null) {
    return (
      <p class="download">
        <progress max={1} value={now.done} aria-label="Download" />
        <small>{now.status}</small>
        <button type="button" title="The server goes on with it" onClick={() => now.hide.abort()}>
          Hide
        </button>
      </p>
    );
  }
  return (
    <form
      class="download"
      onSubmit={(event) => {
        event.preventDefault();
        const name = field.current?.value.trim();
        if (name) void start(name);
      }}
    >
      <input ref={field} aria-label="Model to download" placeholder="owner/name" spellcheck={false} />
      <button type="submit">Download</button>
      {refused.value && <small class="wrong">{refused.value}</small>}
    </form>
  );
}
