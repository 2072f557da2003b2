/** Conversations as trees: an edited message or another answer is a sibling, and one path is shown. */

import type { Attachment, Conversation, Start, Turn } from "./types";

const ROOT = "";
const TITLE_LENGTH = 60;

export function newConversation(id: string, start: Start): Conversation {
  return { ...start, id, title: "", changed: 0, turns: {}, chosen: {} };
}

export function newTurn(id: string, parent: string | null, role: Turn["role"], text = "", files: Attachment[] = []): Turn {
  return { id, parent, role, text, files, answer: null };
}

/** The turns that are shown, from the first on. */
export function path(conversation: Conversation): Turn[] {
  const found: Turn[] = [];
  let turn = conversation.turns[conversation.chosen[ROOT] ?? ""];
  while (turn !== undefined && !found.includes(turn)) {
    found.push(turn);
    turn = conversation.turns[conversation.chosen[turn.id] ?? ""];
  }
  return found;
}

/** All versions of a turn, the oldest first. */
export function versions(conversation: Conversation, turn: Turn): Turn[] {
  return Object.values(conversation.turns).filter((other) => other.parent === turn.parent);
}

/** The conversation with a turn added, or replaced, and chosen. */
export function withTurn(conversation: Conversation, turn: Turn, now: number): Conversation {
  const title = conversation.title || (turn.role === "user" ? titleOf(turn.text || (turn.files[0]?.name ?? "")) : "");
  return {
    ...conversation,
    title,
    changed: now,
    turns: { ...conversation.turns, [turn.id]: turn },
    chosen: { ...conversation.chosen, [turn.parent ?? ROOT]: turn.id },
  };
}

/** The conversation with the version chosen that is `step` before or after this turn. */
export function choose(conversation: Conversation, turn: Turn, step: number): Conversation {
  const all = versions(conversation, turn);
  const other = all[all.findIndex((each) => each.id === turn.id) + step];
  if (other === undefined) return conversation;
  return { ...conversation, chosen: { ...conversation.chosen, [turn.parent ?? ROOT]: other.id } };
}

/** The messages that the model gets, up to and with `last`. */
export function messages(conversation: Conversation, last: Turn): { role: string; content: string }[] {
  const found: { role: string; content: string }[] = [];
  for (let turn: Turn | undefined = last; turn !== undefined; turn = turn.parent ? conversation.turns[turn.parent] : undefined) {
    found.unshift({ role: turn.role, content: content(turn) });
  }
  if (conversation.system.trim()) found.unshift({ role: "system", content: conversation.system });
  return found;
}

/** A turn's text with its attached files, each in a fence that is longer than any in the file. */
export function content(turn: Turn): string {
  if (turn.role === "assistant") return answerText(turn);
  const blocks = turn.files.map((file) => {
    const longest = Math.max(2, ...(file.text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${file.name}:\n${fence}\n${file.text}\n${fence}\n`;
  });
  return [...blocks, turn.text].join("\n").trim();
}

export function answerText(turn: Turn): string {
  return turn.answer === null ? turn.text : turn.answer.spans.map(([, text]) => text).join("");
}

function titleOf(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line;
}
