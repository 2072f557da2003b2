/** The field for the next message, with attached text files. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton } from "./icons";
import { MODIFIER, sends } from "./keys";
import { conversation, current, model } from "./store";
import { path } from "./tree";
import type { Attachment } from "./types";
import { counted, grouped } from "./words";

const LARGEST_FILE = 1_000_000; // bytes

interface Draft {
  text: string;
  files: Attachment[];
}

const EMPTY: Draft = { text: "", files: [] };
/** What is being written, by conversation, while the page is open. */
const drafts = signal<Record<string, Draft>>({});

/** Move the focus to the message field. */
export function focusComposer(): void {
  document.getElementById("message")?.focus();
}

interface ComposerProps {
  busy: boolean;
  onSend: (text: string, files: Attachment[]) => void;
  onStop: () => void;
}

export function Composer({ busy, onSend, onStop }: ComposerProps): JSX.Element {
  const [refused, setRefused] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const { text, files } = drafts.value[current.value] ?? EMPTY;
  const change = (changed: Partial<Draft>): void => {
    const now = drafts.value[current.value] ?? EMPTY;
    drafts.value = { ...drafts.value, [current.value]: { ...now, ...changed } };
  };
  const attach = async (list: FileList | null): Promise<void> => {
    const found = await Promise.all(Array.from(list ?? [], read));
    const now = drafts.value[current.value] ?? EMPTY;
    change({ files: [...now.files, ...found.filter((each) => typeof each !== "string")] });
    setRefused(found.filter((each) => typeof each === "string").join(" "));
    focusComposer();
  };
  useEffect(focusComposer, []);
  useFileDrops((list) => void attach(list));
  useEffect(() => {
    const fit = (): void => fitHeight(field.current);
    fit();
    addEventListener("resize", fit);
    return () => removeEventListener("resize", fit);
  }, [text]);
  const empty = !text.trim() && !files.length;
  const submit = (): void => {
    if (empty || busy) return;
    change(EMPTY);
    setRefused("");
    focusComposer();
    onSend(text.trim(), files);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {(files.length > 0 || refused) && (
        <ul class="files" aria-label="Attached files">
          {files.map((file, index) => (
            <li key={`${index} ${file.name}`}>
              {file.name} <small>{counted(file.text.length, "character")}</small>
              <IconButton icon="close" label={`Remove ${file.name}`} onClick={() => change({ files: files.filter((each) => each !== file) })} />
            </li>
          ))}
          {refused && (
            <li class="refused" role="alert">
              {refused}
            </li>
          )}
        </ul>
      )}
      <div class="field">
        <IconButton icon="clip" label="Attach a text file" onClick={() => picker.current?.click()} />
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          tabIndex={-1}
          aria-label="Text files"
          onChange={(event) => {
            void attach(event.currentTarget.files);
            event.currentTarget.value = "";
          }}
        />
        <textarea
          id="message"
          ref={field}
          rows={1}
          value={text}
          aria-label="Message"
          placeholder="Message"
          onInput={(event) => change({ text: event.currentTarget.value })}
          onKeyDown={(event) => {
            if (event.key === "ArrowUp" && !text) [...document.querySelectorAll<HTMLElement>("article.user [aria-label=Edit]")].at(-1)?.click();
            if (!sends(event)) return;
            event.preventDefault();
            submit();
          }}
        />
        {busy ? (
          <button
            key="stop"
            type="button"
            class="round"
            aria-label="Stop"
            title="Stop (Escape)"
            onClick={(event) => {
              if (event.detail > 1) return; // the second click on Send, whose place this takes
              focusComposer();
              onStop();
            }}
          >
            <Icon name="stop" />
          </button>
        ) : (
          <button key="send" type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled={empty}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <Context />
    </form>
  );
}

const NEARLY_FULL = 0.9;

/** How much of the model's context the shown conversation takes, as of its last answer. */
function Context(): JSX.Element | null {
  const context = model.value?.context ?? 0;
  const stats = path(conversation.value).findLast((turn) => turn.answer?.stats)?.answer?.stats;
  if (!context || !stats) return <p class="context keys">Enter sends · Shift+Enter begins a line · {MODIFIER}+/ lists the keys</p>;
  const used = Math.min(context, stats.prompt_tokens + stats.verified_tokens + stats.unverified_tokens);
  const nearly = used > NEARLY_FULL * context;
  return (
    <p class={`context ${nearly ? "full" : ""}`}>
      <meter min={0} max={context} value={used} aria-label="Context in use" />
      <span data-figure="context">
        {grouped(used)} of {counted(context, "token")}
      </span>
      {nearly && " · the oldest messages will be left out"}
    </p>
  );
}

/** Attach files that are dropped anywhere on the page: the browser would show them in its place. */
function useFileDrops(attach: (list: FileList) => void): void {
  useEffect(() => {
    const over = (event: DragEvent): void => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    };
    const drop = (event: DragEvent): void => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      attach(event.dataTransfer.files);
    };
    document.addEventListener("dragover", over);
    document.addEventListener("drop", drop);
    return () => {
      document.removeEventListener("dragover", over);
      document.removeEventListener("drop", drop);
    };
  }, []);
}

/** Make a field as high as its text. */
export function fitHeight(field: HTMLTextAreaElement | null): void {
  if (field === null) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

/** A file's text, or why it cannot be attached. */
async function read(file: File): Promise<Attachment | string> {
  if (file.size > LARGEST_FILE) return `${file.name} is larger than 1 MB.`;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? `${file.name} is not a text file.` : { name: file.name, text };
  } catch {
    return `${file.name} is not a text file in UTF-8.`;
  }
}
