/** The frame of a dialog, and the two small ones: the keyboard's map, and the server's key. */

import type { Signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { connect } from "./answering";
import { focusComposer } from "./composer";
import { IconButton } from "./icons";
import { MODIFIER } from "./keys";
import { key, keyWanted, setKey } from "./store";

interface DialogProps {
  title: string;
  open: boolean;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, open, onClose, children }: DialogProps): JSX.Element {
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

const SHORTCUTS: [string, string][] = [
  ["Enter", "send the message"],
  ["Shift+Enter", "begin a new line"],
  ["Arrow up", "edit the last message, from an empty field"],
  ["Escape", "stop the answer, or close what is open"],
  [`${MODIFIER}+N`, "new chat"],
  [`${MODIFIER}+L`, "list of chats, and search"],
  [`${MODIFIER}+M`, "choose the model"],
  [`${MODIFIER}+S`, "chat settings"],
  [`${MODIFIER}+R`, "answer again"],
  [`${MODIFIER}+I`, "details of the last answer"],
  [`${MODIFIER}+C`, "show sources in the text"],
  [`${MODIFIER}+/`, "this list"],
];

export function Shortcuts({ open }: { open: Signal<boolean> }): JSX.Element {
  return (
    <Dialog title="Keyboard" open={open.value} onClose={() => (open.value = false)}>
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
        <button type="submit" class="primary">
          Use this key
        </button>
      </form>
    </Dialog>
  );
}
