/** The page's state, and what of it is kept in the browser: conversations, settings and, for this tab, the key. */

import { computed, effect, signal } from "@preact/signals";
import { readConversation, readSettings, readStart } from "./stored";
import { newConversation } from "./tree";
import type { Conversation, Memory, Model, Options, Props, Settings, Start } from "./types";

const CONVERSATION = "edgedecode.conversation.";
const SETTINGS = "edgedecode.settings";
const START = "edgedecode.start";
const KEY = "edgedecode.key";

/** An answer that arrives: its turn, what the server does before it begins, and how to stop it. */
export interface Running {
  turn: string;
  status: string;
  stop: AbortController;
}

export const props = signal<Props | null>(null);
export const models = signal<Model[]>([]);
export const memory = signal<Memory | null>(null);
/** Why the server cannot be used now; empty: it can. */
export const trouble = signal("");
/** Whether the browser's storage has no room for what was said last. */
export const full = signal(false);
/** Why a key is asked for; empty: none is. */
export const keyWanted = signal("");
export const key = signal(read(() => sessionStorage.getItem(KEY)) ?? "");
export const settings = signal<Settings>(readSettings(stored(SETTINGS)));
export const conversations = signal<Map<string, Conversation>>(storedConversations());
/** The shown conversation; empty: a new one. */
export const current = signal(addressed());
export const running = signal<Map<string, Running>>(new Map());
/** What a screen reader announces. */
export const announced = signal("");
/** What the next new conversation begins with. */
const start = signal<Start>(readStart(stored(START)));
/** Conversations that could not be kept. */
const unkept = new Set<string>();

export const conversation = computed(() => conversations.value.get(current.value) ?? newConversation("", start.value));
/** The model that answers in the shown conversation. */
export const model = computed(() => modelOf(conversation.value.options));
export const listed = computed(() => [...conversations.value.values()].sort((one, other) => other.changed - one.changed));
export const answering = computed(() => running.value.has(current.value));

/** Change settings; they are kept. Another tab's changes stay. */
export function set(change: Partial<Settings>): void {
  settings.value = { ...readSettings(stored(SETTINGS)), ...change };
  keep(SETTINGS, JSON.stringify(settings.value));
}

export function setKey(text: string): void {
  key.value = text;
  read(() => sessionStorage.setItem(KEY, text));
}

/** The model that answers with these options: the chosen one where the server has it, else the server's own choice. */
export function modelOf({ model: chosen }: Options): Model | null {
  const named = (name?: string): Model | undefined => models.value.find((each) => each.name === name);
  return named(chosen) ?? named(props.value?.name) ?? models.value[0] ?? null;
}

/** Change the system prompt or options of the shown conversation; without one, of those that begin later. */
export function change({ system, options }: { system?: string; options?: Partial<Options> }): void {
  const changed = (now: Start): Start => ({ system: system ?? now.system, options: { ...now.options, ...options } });
  if (conversations.value.has(current.value)) put({ ...conversation.value, ...changed(conversation.value) });
  else setStart(changed(start.value));
}

/** Answer with another model, in later conversations too. */
export function chooseModel(name: string): void {
  change({ options: { model: name } });
  setStart({ ...start.value, options: { ...start.value.options, model: name } });
}

function setStart(changed: Start): void {
  start.value = changed;
  keep(START, JSON.stringify(changed));
}

/** Change a conversation. keeps: whether it is written to the browser's storage too, which takes a while. */
export function put(changed: Conversation, keeps = true): void {
  conversations.value = new Map(conversations.value).set(changed.id, changed);
  if (keeps) keepConversation(changed);
}

export function keepConversation(changed: Conversation): void {
  if (keep(CONVERSATION + changed.id, JSON.stringify(changed))) unkept.delete(changed.id);
  else unkept.add(changed.id);
  full.value = unkept.size > 0;
}

/** Write again what could not be kept. */
export function keepAll(): void {
  for (const id of [...unkept]) {
    const found = conversations.value.get(id);
    if (found === undefined) unkept.delete(id);
    else keepConversation(found);
  }
  full.value = unkept.size > 0;
}

export function rename(id: string, title: string): void {
  const found = conversations.value.get(id);
  if (found !== undefined && title.trim()) put({ ...found, title: title.trim() });
}

export function remove(id: string): void {
  forget(id);
  read(() => localStorage.removeItem(CONVERSATION + id));
  if (unkept.size) keepAll();
}

export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Have a screen reader say a text, also if it is the same as before. */
export function announce(text: string): void {
  announced.value = "";
  setTimeout(() => (announced.value = text), 50);
}

function forget(id: string): void {
  running.value.get(id)?.stop.abort();
  const others = new Map(conversations.value);
  others.delete(id);
  conversations.value = others;
  if (current.value === id) current.value = "";
}

function keep(name: string, text: string): boolean {
  try {
    localStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

function stored(name: string): string | null {
  return read(() => localStorage.getItem(name));
}

/** The result, or null where the browser forbids storage. */
function read<Kind>(what: () => Kind): Kind | null {
  try {
    return what();
  } catch {
    return null;
  }
}

function storedConversations(): Map<string, Conversation> {
  const names = read(() => Object.keys(localStorage)) ?? [];
  const ids = names.filter((name) => name.startsWith(CONVERSATION)).map((name) => name.slice(CONVERSATION.length));
  const found = ids.map((id) => readConversation(stored(CONVERSATION + id), id)).filter((each) => each !== null);
  return new Map(found.map((each) => [each.id, each]));
}

function addressed(): string {
  const id = location.hash.slice(1);
  return conversations.value.has(id) ? id : "";
}

// Another tab changed something.
addEventListener("storage", ({ key: name, newValue }) => {
  if (name === SETTINGS) settings.value = readSettings(newValue);
  if (name === START) start.value = readStart(newValue);
  if (!name?.startsWith(CONVERSATION)) return;
  const id = name.slice(CONVERSATION.length);
  const changed = readConversation(newValue, id);
  if (newValue === null) forget(id);
  else if (changed !== null && !running.value.has(id)) conversations.value = new Map(conversations.value).set(id, changed);
});

effect(() => {
  const { theme } = settings.value;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
});

// The address names the conversation, so that a reload and the back button find it.
effect(() => {
  const [shown, named] = [current.value, location.hash.slice(1)];
  if (shown === named) return;
  const address = shown ? `#${shown}` : location.pathname;
  const known = named === "" || conversations.peek().has(named);
  if (known) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
});
addEventListener("popstate", () => (current.value = addressed()));

// What has arrived of running answers is written before the page goes.
addEventListener("pagehide", () => {
  for (const id of running.value.keys()) {
    const found = conversations.value.get(id);
    if (found !== undefined) keepConversation(found);
  }
});
