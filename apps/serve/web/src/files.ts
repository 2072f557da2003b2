/** Conversations in files: JSON that the page and the terminal's chat read, and Markdown. */

import { conversations, newId, put } from "./store";
import { conversationOf, DEFAULTS } from "./stored";
import { answerText, content, messages, newConversation, newTurn, path, withTurn } from "./tree";
import type { Conversation } from "./types";
import { counted } from "./words";

const LARGEST_FILE = 20_000_000; // bytes

/** The file of these conversations. That of a single one has its messages too, as the terminal's /save and /load. */
export function exported(chats: Conversation[]): string {
  const [only] = chats;
  const last = only && chats.length === 1 ? path(only).at(-1) : undefined;
  return JSON.stringify({ ...(only && last && { messages: messages(only, last) }), chats }, null, 1);
}

export function saveFile(text: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `edgedecode-${name}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Add the conversations of a file; return what became of it, in words. A newer version of one replaces it. */
export async function imported(file: File): Promise<string> {
  if (file.size > LARGEST_FILE) return `${file.name} is larger than 20 MB.`;
  let value: unknown;
  try {
    value = JSON.parse(await file.text());
  } catch {
    return `${file.name} is not JSON.`;
  }
  const found = chatsIn(value, file.name.replace(/\.json$/, ""));
  if (!found.length) return `${file.name} has no chats.`;
  const fresh = found.filter((each) => each.changed > (conversations.value.get(each.id)?.changed ?? -1));
  for (const each of fresh) put(each);
  const known = found.length - fresh.length;
  return `${file.name}: ${counted(fresh.length, "chat")} imported${known ? `, ${known} known already` : ""}.`;
}

function chatsIn(value: unknown, title: string): Conversation[] {
  if (typeof value !== "object" || value === null) return [];
  if ("chats" in value && Array.isArray(value.chats)) return value.chats.map(conversationOf).filter((each) => each !== null);
  if (!("messages" in value) || !Array.isArray(value.messages)) return [];
  let chat: Conversation = { ...newConversation(newId(), { system: "", options: DEFAULTS }), title };
  let parent: string | null = null;
  for (const { role, content: text } of value.messages.filter(isMessage)) {
    if (role === "system") chat = { ...chat, system: text };
    if (role !== "user" && role !== "assistant") continue;
    const turn = newTurn(newId(), parent, role, text);
    chat = withTurn(chat, turn, Date.now());
    parent = turn.id;
  }
  return parent === null ? [] : [chat];
}

function isMessage(value: unknown): value is { role: string; content: string } {
  return typeof value === "object" && value !== null && "role" in value && "content" in value && typeof value.content === "string";
}

/** The shown messages of a conversation as Markdown. */
export function asMarkdown(chat: Conversation): string {
  const parts = path(chat).map((turn) => `**${turn.role === "user" ? "You" : (turn.answer?.model ?? "Answer")}:**\n\n${turn.role === "user" ? content(turn) : answerText(turn)}\n`);
  return [`# ${chat.title}\n`, ...parts].join("\n");
}
