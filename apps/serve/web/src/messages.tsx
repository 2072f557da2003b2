/** The shown messages of a conversation, with what can be done with each. */

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { answer, send } from "./answering";
import { fitHeight, focusComposer } from "./composer";
import { Details, Figures, opened } from "./details";
import { IconButton } from "./icons";
import { MODIFIER, sends } from "./keys";
import { type Block, blocks, html } from "./markdown";
import { KINDS, kindOf } from "./sources";
import { announce, answering, conversation, current, put, running, settings } from "./store";
import { answerText, choose, path, versions } from "./tree";
import type { Answer, Turn } from "./types";
import { counted } from "./words";

const END = 4; // pixels from the end that count as the end

export function Messages(): JSX.Element {
  const view = useRef<HTMLDivElement>(null);
  const [follows, setFollows] = useState(true);
  const place = useRef(0);
  const shown = path(conversation.value);
  const toEnd = (): void => {
    if (view.current) view.current.scrollTop = view.current.scrollHeight;
  };
  useEffect(() => setFollows(true), [current.value, shown.length]);
  useEffect(() => {
    if (follows) toEnd();
  });
  return (
    <div class="view">
      <div
        class="messages"
        ref={view}
        tabIndex={0}
        role="region"
        aria-label="Messages"
        aria-busy={answering.value}
        onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
          if (scrollHeight - scrollTop - clientHeight < END) setFollows(true);
          else if (scrollTop < place.current) setFollows(false); // the user went up
          place.current = scrollTop;
        }}
        onClick={copyCode}
      >
        {conversation.value.system.trim() && (
          <details class="attachment system">
            <summary>System prompt</summary>
            <pre tabIndex={0}>{conversation.value.system}</pre>
          </details>
        )}
        {shown.map((turn) => (
          <Message key={`${turn.parent} ${turn.role}`} turn={turn} last={turn === shown.at(-1)} />
        ))}
      </div>
      {!follows && <IconButton icon="down" label="To the end" class="to-end" onClick={() => (setFollows(true), toEnd())} />}
    </div>
  );
}

function Message({ turn, last }: { turn: Turn; last: boolean }): JSX.Element {
  const [editing, setEditing] = useState(false);
  const edit = useRef<HTMLDivElement>(null);
  const arriving = running.value.get(current.value);
  const arrives = arriving?.turn === turn.id;
  const status = arrives ? arriving.status : "";
  const cancel = (): void => {
    setEditing(false);
    setTimeout(() => edit.current?.querySelector<HTMLElement>("[aria-label=Edit]")?.focus());
  };
  // Rendering an answer is dear, and each event of another one comes by here.
  const body = useMemo(
    () => (turn.role === "user" ? turn.text && <div class="text">{turn.text}</div> : <AnswerText turn={turn} arrives={arrives} status={status} />),
    [turn, arrives, status],
  );
  return (
    <article class={turn.role} aria-label={turn.role === "user" ? "You" : "Answer"} ref={edit}>
      {turn.files.map((file, index) => (
        <details key={index} class="attachment">
          <summary>
            {file.name} <small>{counted(file.text.length, "character")}</small>
          </summary>
          <pre tabIndex={0}>{file.text}</pre>
        </details>
      ))}
      {editing ? <Editor turn={turn} onCancel={cancel} onSent={() => setEditing(false)} /> : body}
      {!editing && !arrives && <Actions turn={turn} last={last} onEdit={() => setEditing(true)} />}
      {opened.value === turn.id && !arrives && turn.answer?.stats && <Details turn={turn} answer={turn.answer} stats={turn.answer.stats} />}
    </article>
  );
}

function AnswerText({ turn, arrives, status }: { turn: Turn; arrives: boolean; status: string }): JSX.Element {
  const made = turn.answer;
  if (made === null) return <Markdown text={turn.text} grows={false} />;
  const text = answerText(turn);
  return (
    <>
      {made.notices.map((notice, index) => (
        <p key={index} class="notice">
          {notice}
        </p>
      ))}
      {made.thought.trim() && (
        <details class="attachment thought">
          <summary>{arrives && !text ? "Thinking…" : "Thought"}</summary>
          <div class="text">{made.thought.trim()}</div>
        </details>
      )}
      {settings.value.sources ? <Coloured answer={made} /> : <Markdown text={made.json && text ? `\`\`\`json\n${text}\n\`\`\`` : text} grows={arrives} />}
      {arrives && <span class="cursor" aria-hidden="true" />}
      {arrives && !text && !made.thought && <span class="waits">{status ? status.charAt(0).toUpperCase() + status.slice(1) : "Waiting for the model"}</span>}
      {made.error !== null && <p class="trouble">{made.error}</p>}
    </>
  );
}

function Markdown({ text, grows }: { text: string; grows: boolean }): JSX.Element {
  const parts = useMemo(() => blocks(text), [text]);
  return (
    <div class="text markdown">
      {parts.map((part, index) => (
        <BlockHtml key={index} block={part} grows={grows && index === parts.length - 1} />
      ))}
    </div>
  );
}

function BlockHtml({ block, grows }: { block: Block; grows: boolean }): JSX.Element {
  return useMemo(() => <div dangerouslySetInnerHTML={{ __html: html(block, grows) }} />, [block.key, grows]);
}

/** The text as it was written, coloured by the source of its tokens. */
function Coloured({ answer: made }: { answer: Answer }): JSX.Element {
  return (
    <div class="text coloured">
      {made.spans.map(([source, text, tokens], index) => {
        const kind = kindOf(source);
        return (
          <span key={index} class={`source ${kind}`} title={`${KINDS[kind]}, ${counted(tokens, "token")}`}>
            {text}
          </span>
        );
      })}
    </div>
  );
}

interface ActionsProps {
  turn: Turn;
  last: boolean;
  onEdit: () => void;
}

function Actions({ turn, last, onEdit }: ActionsProps): JSX.Element {
  const now = conversation.value;
  const all = versions(now, turn);
  const place = all.findIndex((each) => each.id === turn.id);
  const busy = answering.value;
  const asked = turn.role === "user" ? turn : now.turns[turn.parent ?? ""];
  const again = (): void => {
    if (asked !== undefined) void answer(now, asked);
  };
  return (
    <div class="actions">
      {turn.answer !== null && <Figures turn={turn} answer={turn.answer} />}
      {all.length > 1 && (
        <span class="versions">
          <IconButton icon="left" label="Earlier version" disabled={place === 0 || busy} onClick={() => put(choose(now, turn, -1))} />
          <span aria-label={`Version ${place + 1} of ${all.length}`} role="img">
            {place + 1}/{all.length}
          </span>
          <IconButton icon="right" label="Later version" disabled={place === all.length - 1 || busy} onClick={() => put(choose(now, turn, 1))} />
        </span>
      )}
      <span class="tools">
        <IconButton icon="copy" label="Copy" onClick={() => void copy(turn.role === "user" ? turn.text : answerText(turn))} />
        {turn.role === "user" && <IconButton icon="edit" label="Edit" disabled={busy} onClick={onEdit} />}
        {turn.role === "assistant" && <IconButton icon="again" label="Regenerate" keys={`${MODIFIER}+R`} disabled={busy} onClick={again} />}
        {turn.role === "user" && last && <IconButton icon="again" label="Answer" disabled={busy} onClick={again} />}
      </span>
    </div>
  );
}

interface EditorProps {
  turn: Turn;
  onCancel: () => void;
  onSent: () => void;
}

/** Edit a message: it becomes another version, and is answered; the old one stays. */
function Editor({ turn, onCancel, onSent }: EditorProps): JSX.Element {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    fitHeight(field.current);
    field.current?.focus();
  }, []);
  const save = (): void => {
    const text = field.current?.value.trim() ?? "";
    if (answering.value || (!text && !turn.files.length)) return;
    focusComposer();
    onSent();
    void send(text, turn.files, turn.parent);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
    >
      <textarea
        ref={field}
        aria-label="Edited message"
        defaultValue={turn.text}
        onInput={(event) => fitHeight(event.currentTarget)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            onCancel();
          } else if (sends(event)) {
            event.preventDefault();
            save();
          }
        }}
      />
      <button type="submit" disabled={answering.value}>
        Send
      </button>
      <button type="button" onClick={onCancel}>
        Cancel
      </button>
    </form>
  );
}

async function copyCode(event: MouseEvent): Promise<void> {
  const button = event.target;
  if (!(button instanceof HTMLButtonElement) || !button.classList.contains("copy-code")) return;
  const code = button.closest(".code")?.querySelector("code")?.textContent ?? "";
  button.textContent = (await copy(code.replace(/\n$/, ""))) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** Copy a text, and say so. Return whether it worked. */
export async function copy(text: string): Promise<boolean> {
  const copied = (await copiedByClipboard(text)) || copiedBySelection(text);
  announce(copied ? "Copied." : "This browser does not let the page copy.");
  return copied;
}

async function copiedByClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // a page that another machine serves without TLS has no clipboard
  }
}

function copiedBySelection(text: string): boolean {
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (before instanceof HTMLElement) before.focus();
  return copied;
}
