/** Reads what the browser's storage holds, which another version, another tab or a user may have written. */

import type { Answer, Attachment, Conversation, Options, Settings, Span, Start, Stats, Turn } from "./types";
import { NUMBER_NAMES } from "./types";

export const DEFAULTS: Options = {
  model: "",
  mode: "",
  adapter: "",
  think: "",
  format: "",
  schema: "",
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
};

type Fields = Record<string, unknown>;

/** A conversation; null if this is none, or not the one of this id. */
export function readConversation(text: string | null, id: string): Conversation | null {
  const found = conversationOf(parsed(text));
  return found?.id === id ? found : null;
}

/** The conversation that a JSON value describes; null: none. */
export function conversationOf(given: unknown): Conversation | null {
  const value = fields(given);
  const id = string(value?.id);
  if (value === null || !id) return null;
  const turns: Record<string, Turn> = {};
  for (const [name, each] of Object.entries(fields(value.turns) ?? {})) {
    const turn = readTurn(fields(each));
    if (turn?.id === name) turns[name] = turn;
  }
  const chosen: Record<string, string> = {};
  for (const [name, each] of Object.entries(fields(value.chosen) ?? {})) {
    if (typeof each === "string" && (turns[each]?.parent ?? "") === name) chosen[name] = each;
  }
  return { id, title: string(value.title), changed: number(value.changed), ...startOf(value), turns, chosen };
}

export function readStart(text: string | null): Start {
  return startOf(fields(parsed(text)) ?? {});
}

function startOf(value: Fields): Start {
  const given = fields(value.options) ?? {};
  const options: Options = { ...DEFAULTS };
  for (const name of ["model", "mode", "adapter", "think", "schema"] as const) options[name] = string(given[name]);
  if (given.format === "json" || given.format === "schema") options.format = given.format;
  for (const name of NUMBER_NAMES) {
    const found = given[name];
    if (typeof found === "number") options[name] = found;
  }
  return { system: string(value.system), options };
}

export function readSettings(text: string | null): Settings {
  const value = fields(parsed(text)) ?? {};
  const theme = value.theme === "light" || value.theme === "dark" ? value.theme : "system";
  return { theme, sources: value.sources === true, sidebar: value.sidebar !== false };
}

function readTurn(value: Fields | null): Turn | null {
  if (value === null || (value.role !== "user" && value.role !== "assistant")) return null;
  const parent = typeof value.parent === "string" ? value.parent : null;
  const files = array(value.files).filter(isAttachment);
  return { id: string(value.id), parent, role: value.role, text: string(value.text), files, answer: readAnswer(fields(value.answer)) };
}

function readAnswer(value: Fields | null): Answer | null {
  if (value === null) return null;
  return {
    model: string(value.model),
    thought: string(value.thought),
    spans: array(value.spans).filter(isSpan),
    json: value.json === true,
    stats: isStats(value.stats) ? value.stats : null,
    notices: array(value.notices).filter((each) => typeof each === "string"),
    finish: typeof value.finish === "string" ? value.finish : null,
    error: typeof value.error === "string" ? value.error : null,
  };
}

function isSpan(value: unknown): value is Span {
  return Array.isArray(value) && typeof value[0] === "string" && typeof value[1] === "string" && typeof value[2] === "number";
}

function isAttachment(value: unknown): value is Attachment {
  return typeof fields(value)?.name === "string" && typeof fields(value)?.text === "string";
}

function isStats(value: unknown): value is Stats {
  const stats = fields(value);
  const numbers = ["rounds", "proposed", "accepted", "verified_tokens", "unverified_tokens", "prompt_tokens", "cached_tokens", "tokens_per_second", "time_to_first_token"];
  const maps = ["plain_rounds", "time_seconds"];
  return stats !== null && numbers.every((name) => typeof stats[name] === "number") && maps.every((name) => fields(stats[name]));
}

function parsed(text: string | null): unknown {
  try {
    return text === null ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

function fields(value: unknown): Fields | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : null;
}

function array(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}
