/** Asks the server for an answer and adds it to its conversation as it arrives. */

import { ApiError, chat, type Delta, getMemory, getProps } from "./api";
import { announced, conversations, current, ensured, key, keyWanted, memory, newId, props, put, running, settings, trouble } from "./store";
import { answerText, messages, newTurn, path, withTurn } from "./tree";
import type { Answer, Attachment, Conversation, Turn } from "./types";

const FRAME = 40; // milliseconds between two renderings of a running answer
const KEEP = 1000; // and between two writes to the browser's storage

/** Send a message after `parent` (null: as the first), and answer it. */
export async function send(text: string, files: Attachment[], parent: string | null): Promise<void> {
  const conversation = ensured();
  const turn = newTurn(newId(), parent, "user", text, files);
  put(withTurn(conversation, turn, Date.now()));
  await answer(conversation.id, turn);
}

/** Answer a user's turn, in addition to the answers that it has. */
export async function answer(id: string, asked: Turn): Promise<void> {
  const conversation = conversations.value[id];
  if (conversation === undefined || id in running.value) return;
  const stop = new AbortController();
  running.value = { ...running.value, [id]: stop };
  const model = modelName();
  let turn: Turn = { ...newTurn(newId(), asked.id, "assistant"), answer: begun(model) };
  put(withTurn(conversation, turn, Date.now()));
  announced.value = "The model is answering.";
  let kept = performance.now();
  const show = (change: Partial<Answer>, keeps: boolean): void => {
    turn = { ...turn, answer: { ...(turn.answer ?? begun(model)), ...change } };
    const now = conversations.value[id];
    if (now !== undefined) put({ ...now, turns: { ...now.turns, [turn.id]: turn } }, keeps);
  };
  const waiting: Delta[] = [];
  let timer = 0;
  const flush = (keeps = false): void => {
    clearTimeout(timer);
    timer = 0;
    if (!waiting.length && !keeps) return;
    const due = keeps || performance.now() - kept > KEEP;
    if (due) kept = performance.now();
    show(added(turn.answer ?? begun(model), waiting.splice(0)), due);
  };
  try {
    for await (const delta of chat(request(conversation, asked, model), key.value, stop.signal)) {
      waiting.push(delta);
      timer ||= setTimeout(flush, FRAME);
    }
    flush(true);
    announced.value = `The answer is complete. ${answerText(turn)}`;
  } catch (error) {
    flush(true);
    if (stop.signal.aborted) show({ finish: "stopped" }, true);
    else show({ finish: "error", error: failed(error) }, true);
    announced.value = stop.signal.aborted ? "The answer was stopped." : (turn.answer?.error ?? "");
  } finally {
    const { [id]: _, ...others } = running.value;
    running.value = others;
    void lookAtMemory();
  }
}

export function stop(id = current.value): void {
  running.value[id]?.abort();
}

/** Answer the last message of the current conversation again. */
export function regenerate(): void {
  const conversation = conversations.value[current.value];
  const asked = conversation && path(conversation).findLast((turn) => turn.role === "user");
  if (conversation && asked) void answer(conversation.id, asked);
}

/** The server's name of the chosen adapter and mode; a choice that this server does not have is left out. */
export function modelName(): string {
  const { adapter, mode } = settings.value;
  const known = props.value;
  if (known === null) return "";
  const suffix = known.modes.includes(mode) ? `@${mode}` : "";
  return known.name + (known.adapters.includes(adapter) ? `:${adapter}` : "") + suffix;
}

export async function connect(): Promise<void> {
  try {
    props.value = await getProps(key.value);
    trouble.value = "";
    keyWanted.value = false;
    await lookAtMemory();
  } catch (error) {
    trouble.value = failed(error);
  }
}

export async function lookAtMemory(): Promise<void> {
  try {
    memory.value = await getMemory(key.value);
  } catch {
    memory.value = null; // the next answer reports what is wrong
  }
}

function request(conversation: Conversation, asked: Turn, model: string): object {
  const { temperature, top_p, top_k, min_p, max_tokens, seed } = settings.value;
  const given = { temperature, top_p, top_k, min_p, max_tokens, seed };
  return {
    model,
    messages: messages(conversation, asked),
    stream: true,
    return_rounds: true,
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null)),
  };
}

function begun(model: string): Answer {
  return { model, spans: [], rounds: [], uncertainty: [], stats: null, notices: [], finish: null, error: null };
}

/** The answer with these events added; consecutive pieces of one source stay apart, as they were accepted apart. */
export function added(answer: Answer, deltas: Delta[]): Answer {
  const spans = [...answer.spans];
  const rounds = [...answer.rounds];
  const uncertainty = [...answer.uncertainty];
  const notices = [...answer.notices];
  let { stats, finish } = answer;
  for (const { text, finish: reason, report } of deltas) {
    if (text || report?.tokens) spans.push({ source: report?.source ?? "target", text, tokens: report?.tokens ?? 0 });
    if (report?.round) rounds.push(report.round);
    if (report?.uncertainty) uncertainty.push(...report.uncertainty);
    if (report?.notice) notices.push(report.notice);
    stats = report?.stats ?? stats;
    finish = reason ?? finish;
  }
  return { ...answer, spans, rounds, uncertainty, notices, stats, finish };
}

function failed(error: unknown): string {
  if (error instanceof ApiError && error.status === 401) keyWanted.value = true;
  return error instanceof Error ? error.message : String(error);
}
