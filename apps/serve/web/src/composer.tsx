/** The field for the next message, with attached text files. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton } from "./icons";
import type { Attachment } from "./types";

const LARGEST_FILE = 1_000_000; // bytes

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
  const [text, setText] = useState("");
  const [files, setFiles] = useState<Attachment[]>([]);
  const [refused, setRefused] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(focusComposer, []);
  useEffect(() => {
    const area = field.current;
    if (area === null) return;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [text]);
  const empty = !text.trim() && !files.length;
  const submit = (): void => {
    if (empty || busy) return;
    onSend(text.trim(), files);
    setText("");
    setFiles([]);
    setRefused("");
  };
  const attach = async (list: FileList | null): Promise<void> => {
    const found = await Promise.all(Array.from(list ?? [], read));
    setFiles([...files, ...found.filter((each) => typeof each !== "string")]);
    setRefused(found.filter((each) => typeof each === "string").join(" "));
    focusComposer();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void attach(event.dataTransfer?.files ?? null);
      }}
    >
      {(files.length > 0 || refused) && (
        <ul class="files" aria-label="Attached files">
          {files.map((file, index) => (
            <li key={`${index} ${file.name}`}>
              {file.name} <small>{file.text.length} characters</small>
              <IconButton icon="close" label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((each) => each !== file))} />
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
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            submit();
          }}
        />
        {busy ? (
          <button type="button" class="round" aria-label="Stop" title="Stop (Escape)" onClick={onStop}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled={empty}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
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
