/** The shown messages of a conversation, with what can be done with each. */

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { answer, send } from "./answering";
import { IconButton } from "./icons";
import { blocks, html } from "./markdown";
import { KINDS, kindOf } from "./sources";
import { announced, answering, conversation, put, settings, trouble } from "./store";
import { answerText, choose, path, versions } from "./tree";
import type { Answer, Turn } from "./types";

const NEAR_END = 80; // pixels from the end within which the view follows a growing answer

export function Messages(): JSX.Element {
  const view = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const shown = path(conversation.value);
  useEffect(() => {
    follows.current = true;
  }, [conversation.value.id, shown.length]);
  useEffect(() => {
    if (follows.current && view.current) view.current.scrollTop = view.current.scrollHeight;
  });
  return (
    <div
      class="messages"
      ref={view}
      tabIndex={0}
      role="region"
      aria-label="Messages"
      aria-busy={answering.value}
      onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
        follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
      }}
      onClick={copyCode}
    >
      {shown.map((turn) => (
        <Message key={turn.id} turn={turn} />
      ))}
    </div>
  );
}

function Message({ turn }: { turn: Turn }): JSX.Element {
  const [editing, setEditing] = useState(false);
  const label = turn.role === "user" ? "You" : "Answer";
  return (
    <article class={turn.role} aria-label={label}>
      {turn.files.map((file) => (
        <details key={file.name} class="attachment">
          <summary>
            {file.name} <small>{file.text.length} characters</small>
          </summary>
          <pre tabIndex={0}>{file.text}</pre>
        </details>
      ))}
      {editing ? (
        <Editor turn={turn} onDone={() => setEditing(false)} />
      ) : turn.role === "user" ? (
        turn.text && <div class="text">{turn.text}</div>
      ) : (
        <AnswerText turn={turn} />
      )}
      {!editing && <Actions turn={turn} onEdit={() => setEditing(true)} />}
    </article>
  );
}

function AnswerText({ turn }: { turn: Turn }): JSX.Element {
  const answer = turn.answer;
  const runs = answering.value && answer?.finish === null;
  if (answer === null) return <Markdown text={turn.text} />;
  return (
    <>
      {answer.notices.map((notice) => (
        <p key={notice} class="notice">
          {notice}
        </p>
      ))}
      {settings.value.colours ? <Coloured answer={answer} /> : <Markdown text={answerText(turn)} />}
      {runs && <span class="cursor" aria-hidden="true" />}
      {answer.error !== null && (
        <p class="trouble" role="alert">
          {answer.error}
        </p>
      )}
    </>
  );
}

function Markdown({ text }: { text: string }): JSX.Element {
  const parts = useMemo(() => blocks(text), [text]);
  return (
    <div class="text markdown">
      {parts.map((part, index) => (
        <Block key={index} text={part} />
      ))}
    </div>
  );
}

function Block({ text }: { text: string }): JSX.Element {
  const inner = useMemo(() => ({ __html: html(text) }), [text]);
  return useMemo(() => <div dangerouslySetInnerHTML={inner} />, [inner]);
}

/** The text as it was written, coloured by the source of its tokens. */
function Coloured({ answer }: { answer: Answer }): JSX.Element {
  return (
    <div class="text coloured">
      {answer.spans.map((span, index) => {
        const kind = kindOf(span.source);
        return (
          <span key={index} class={`source ${kind}`} title={`${KINDS[kind]}, ${span.tokens} tokens`}>
            {span.text}
          </span>
        );
      })}
    </div>
  );
}

const WHY: Record<string, string> = {
  length: "cut off at the limit of tokens",
  stopped: "stopped",
  error: "ended with an error",
};

function Actions({ turn, onEdit }: { turn: Turn; onEdit: () => void }): JSX.Element {
  const all = versions(conversation.value, turn);
  const place = all.findIndex((each) => each.id === turn.id);
  const { answer: made } = turn;
  const parent = turn.parent === null ? undefined : conversation.value.turns[turn.parent];
  const busy = answering.value;
  return (
    <div class="actions">
      {all.length > 1 && (
        <span class="versions">
          <IconButton icon="left" label="Earlier version" disabled={place === 0 || busy} onClick={() => put(choose(conversation.value, turn, -1))} />
          <span aria-label={`Version ${place + 1} of ${all.length}`} role="img">
            {place + 1}/{all.length}
          </span>
          <IconButton icon="right" label="Later version" disabled={place === all.length - 1 || busy} onClick={() => put(choose(conversation.value, turn, 1))} />
        </span>
      )}
      <IconButton icon="copy" label="Copy" onClick={() => copy(turn.role === "user" ? turn.text : answerText(turn))} />
      {turn.role === "user" ? (
        <IconButton icon="edit" label="Edit" disabled={busy} onClick={onEdit} />
      ) : (
        <IconButton icon="again" label="Regenerate" disabled={busy} onClick={() => parent && void answer(conversation.value.id, parent)} />
      )}
      {made !== null && (made.finish !== null || !busy) && (
        <small>
          {made.stats && `${made.stats.verified_tokens + made.stats.unverified_tokens} tokens · ${made.stats.tokens_per_second.toFixed(0)} tokens/s`}
          {` · ${made.model}`}
          {made.finish === null ? ` · interrupted` : WHY[made.finish] && ` · ${WHY[made.finish]}`}
        </small>
      )}
    </div>
  );
}

/** Edit a message: it becomes another version, and is answered; the old one stays. */
function Editor({ turn, onDone }: { turn: Turn; onDone: () => void }): JSX.Element {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const save = (): void => {
    const text = field.current?.value.trim() ?? "";
    onDone();
    if (text || turn.files.length) void send(text, turn.files, turn.parent);
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
        rows={Math.min(12, turn.text.split("\n").length + 1)}
        defaultValue={turn.text}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            onDone();
          }
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            save();
          }
        }}
      />
      <button type="submit">Send</button>
      <button type="button" onClick={onDone}>
        Cancel
      </button>
    </form>
  );
}

function copyCode(event: MouseEvent): void {
  const button = event.target;
  if (!(button instanceof HTMLButtonElement) || !button.classList.contains("copy-code")) return;
  const code = button.closest(".code")?.querySelector("code")?.textContent ?? "";
  copy(code.replace(/\n$/, ""));
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function copy(text: string): void {
  // Browsers offer a clipboard only to pages of this machine, or over TLS.
  if (navigator.clipboard) void navigator.clipboard.writeText(text).then(() => (announced.value = "Copied."));
  else trouble.value = "This browser offers no clipboard to a page that another machine serves without TLS.";
}
