/** The keyboard: shortcuts, and keys that belong to an input method. */

const MAC = /^Mac/.test(navigator.platform);

/** What is pressed with a shortcut's letter. On a Mac, Option alone writes characters. */
export const MODIFIER = MAC ? "Ctrl+Option" : "Alt";

/** The letter of a shortcut; null: this is none. */
export function shortcut(event: KeyboardEvent): string | null {
  if (!event.altKey || event.metaKey || event.ctrlKey !== MAC) return null;
  if (MAC) return event.code === "Slash" ? "/" : event.code.replace(/^Key/, "").toLowerCase();
  return event.key.toLowerCase(); // a layout that writes another character with Alt keeps it
}

/** Whether a key is part of composing a character, as in Chinese or Japanese. Safari says it by the old code alone. */
export function composing(event: KeyboardEvent): boolean {
  return event.isComposing || event.keyCode === 229;
}

/** Whether a key sends what was written. */
export function sends(event: KeyboardEvent): boolean {
  return event.key === "Enter" && !event.shiftKey && !composing(event);
}
