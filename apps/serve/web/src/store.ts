/** The page's state, and what of it is kept in the browser: conversations, settings and, for this tab, the key. */

import { computed, effect, signal } from "@preact/signals";
import { newConversation } from "./tree";
import type { Conversation, Memory, Props, Settings } from "./types";

const CONVERSATION = "edgedecode.conversation.";
const SETTINGS = "edgedecode.settings";
const SYSTEM = "edgedecode.system";
const KEY = "edgedecode.key";

const DEFAULTS: Settings = {
  mode: "",
  adapter: "",
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
  theme: "system",
  colours: false,
  panel: true,
};

export const props = signal<Props | null>(null);
export const memory = signal<Memory | null>(null);
/** Why the server cannot be used now; empty: it can. */
export const trouble = signal("");
export const keyWanted = signal(false);
export const key = signal(sessionStorage.getItem(KEY) ?? "");
export const settings = signal<Settings>({ ...DEFAULTS, ...parsed<Partial<Settings>>(localStorage.getItem(SETTINGS)) });
export const conversations = signal<Record<string, Conversation>>(stored());
/** The shown conversation; empty: a new one. */
export const current = signal(addressed());
/** The system prompt of the next new conversation. */
const system = signal(localStorage.getItem(SYSTEM) ?? "");
/** Conversations that are being answered, and how to stop each. */
export const running = signal<Record<string, AbortController>>({});
/** What a screen reader announces. */
export const announced = signal("");

export const conversation = computed<Conversation>(
  () => conversations.value[current.value] ?? newConversation("", system.value, 0),
);
export const listed = computed(() => Object.values(conversations.value).sort((one, other) => other.changed - one.changed));
export const answering = computed(() => current.value in running.value);

/** Change settings; they are kept. */
export function set(change: Partial<Settings>): void {
  settings.value = { ...settings.value, ...change };
  keep(SETTINGS, JSON.stringify(settings.value));
}

export function setKey(text: string): void {
  key.value = text;
  sessionStorage.setItem(KEY, text);
}

/** The system prompt of this conversation, and of the next new ones. */
export function setSystem(text: string): void {
  system.value = text;
  keep(SYSTEM, text);
  if (current.value in conversations.value) put({ ...conversation.value, system: text });
}

/** The current conversation, created if it is new. */
export function ensured(): Conversation {
  if (current.value in conversations.value) return conversation.value;
  const fresh = newConversation(newId(), conversation.value.system, Date.now());
  put(fresh);
  current.value = fresh.id;
  return fresh;
}

/** Change a conversation. keeps: whether it is written to the browser's storage too, which takes a while. */
export function put(changed: Conversation, keeps = true): void {
  conversations.value = { ...conversations.value, [changed.id]: changed };
  if (keeps) keep(CONVERSATION + changed.id, JSON.stringify(changed));
}

export function rename(id: string, title: string): void {
  const found = conversations.value[id];
  if (found !== undefined && title.trim()) put({ ...found, title: title.trim() });
}

export function remove(id: string): void {
  running.value[id]?.abort();
  const { [id]: _, ...others } = conversations.value;
  conversations.value = others;
  localStorage.removeItem(CONVERSATION + id);
  if (current.value === id) current.value = "";
}

export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function keep(name: string, text: string): void {
  try {
    localStorage.setItem(name, text);
  } catch {
    trouble.value = "The browser's storage is full: delete conversations to keep new ones.";
  }
}

function stored(): Record<string, Conversation> {
  const found: Record<string, Conversation> = {};
  for (const name of Object.keys(localStorage).filter((each) => each.startsWith(CONVERSATION))) {
    const each = parsed<Conversation>(localStorage.getItem(name));
    if (each?.turns !== undefined && each.chosen !== undefined) found[each.id] = each;
  }
  return found;
}

function parsed<Kind>(text: string | null): Kind | null {
  try {
    return text === null ? null : (JSON.parse(text) as Kind);
  } catch {
    return null;
  }
}

// Another tab changed a conversation.
addEventListener("storage", ({ key: name, newValue }) => {
  if (!name?.startsWith(CONVERSATION)) return;
  const id = name.slice(CONVERSATION.length);
  const { [id]: _, ...others } = conversations.value;
  const changed = parsed<Conversation>(newValue);
  conversations.value = changed === null ? others : { ...others, [id]: changed };
});

effect(() => {
  const { theme } = settings.value;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
});

// The address names the conversation, so that a reload and the back button find it.
effect(() => {
  const wanted = current.value ? `#${current.value}` : location.pathname;
  if (location.hash.slice(1) !== current.value) history.pushState(null, "", wanted);
});

addEventListener("popstate", () => (current.value = addressed()));

function addressed(): string {
  const id = location.hash.slice(1);
  return id in conversations.value ? id : "";
}
