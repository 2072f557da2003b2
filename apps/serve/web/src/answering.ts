/** Asks the server for an answer and adds it to its conversation as it arrives. */

import { ApiError, chat, type Delta, getMemory, getModels, getProps, pulled } from "./api";
import { announce, conversation, conversations, current, key, keyWanted, memory, modelOf, models, newId, props, put, running, trouble } from "./store";
import { answerText, messages, newTurn, path, withTurn } from "./tree";
import type { Answer, Attachment, Conversation, Options, Span, Turn } from "./types";
import { NUMBER_NAMES } from "./types";

const FRAME = 40; // milliseconds between two renderings of a running answer
const KEEP = 3000; // and between two writes to the browser's storage

/** Send a message after `parent` (null: as the first), and answer it. Does nothing while an answer arrives. */
export async function send(text: string, files: Attachment[], parent: string | null): Promise<void> {
  if (running.value.has(current.value)) return;
  const now = conversations.value.get(current.value) ?? { ...conversation.value, id: newId() };
  const turn = newTurn(newId(), parent, "user", text, files);
  const changed = withTurn(now, turn, Date.now());
  put(changed, false); // it is kept with the answer's turn
  current.value = now.id;
  await answer(changed, turn);
}

/** Answer a user's turn, in addition to the answers that it has. */
export async function answer(now: Conversation, asked: Turn): Promise<void> {
  if (running.value.has(now.id)) return;
  const { id } = now;
  const stop = new AbortController();
  const turn = newTurn(newId(), asked.id, "assistant");
  const model = modelName(now.options);
  turn.answer = { model, thought: "", spans: [], json: now.options.format !== "", stats: null, notices: [], finish: null, error: null };
  running.value = new Map(running.value).set(id, { turn: turn.id, status: "", stop });
  put(withTurn(now, turn, Date.now()));
  say(id, "The model is answering.");
  const arriving = new Arriving(id, { ...turn, answer: turn.answer });
  try {
    await received(now, asked, arriving, stop.signal);
    arriving.show({}, true);
    say(id, `The answer is complete. ${id === current.value ? answerText(arriving.turn) : ""}`);
  } catch (error) {
    const stopped = stop.signal.aborted;
    arriving.show(stopped ? { finish: "stopped" } : { finish: "error", error: failed(error) }, true);
    say(id, stopped ? "The answer was stopped." : (arriving.turn.answer.error ?? ""));
  } finally {
    const others = new Map(running.value);
    others.delete(id);
    running.value = others;
    if (models.value.length > 1) void lookAtModels(); // a loaded one has modes and adapters
  }
}

/** Answer the last message of the shown conversation again. */
export function answerAgain(): void {
  const asked = path(conversation.value).findLast((turn) => turn.role === "user");
  if (asked !== undefined) void answer(conversation.value, asked);
}

export function stop(): void {
  running.value.get(current.value)?.stop.abort();
}

export async function connect(): Promise<void> {
  const described = getProps(key.value);
  described.catch(() => undefined);
  try {
    models.value = await getModels(key.value);
    trouble.value = keyWanted.value = "";
    props.value = await described;
    if (models.value.length > 1) await lookAtModels();
  } catch (error) {
    trouble.value = failed(error);
  }
}

/** Ask for the server's models again: others were loaded or downloaded. */
export async function lookAtModels(): Promise<void> {
  models.value = await getModels(key.value).catch(() => models.value);
  if (!props.value?.engine) props.value = await getProps(key.value).catch(() => props.value); // more of one that is loaded
}

/** Download a model; `told` is called with its progress, in words and from 0 to 1. Throws ApiError, AbortError. */
export async function pull(name: string, signal: AbortSignal, told: (status: string, done: number) => void): Promise<void> {
  for await (const { status, completed, total } of pulled(name, key.value, signal)) told(status, total ? completed / total : 0);
  await lookAtModels();
}

/** Ask for the memory that the server holds. */
export async function lookAtMemory(): Promise<void> {
  memory.value = await getMemory(key.value).catch(() => null);
}

/** A running answer: collects events, and shows them a few times a second. */
class Arriving {
  private waiting: Delta[] = [];
  private timer = 0;
  private kept = performance.now();

  constructor(
    private readonly id: string,
    public turn: Turn & { answer: Answer },
  ) {}

  add(delta: Delta): void {
    this.waiting.push(delta);
    this.timer ||= setTimeout(() => this.show({}, performance.now() - this.kept > KEEP), FRAME);
  }

  /** Show what has arrived, with other changes. keeps: write it to the browser's storage too. */
  show(change: Partial<Answer>, keeps: boolean): void {
    clearTimeout(this.timer);
    this.timer = 0;
    if (keeps) this.kept = performance.now();
    const status = this.waiting.at(-1)?.status ?? "";
    this.turn = { ...this.turn, answer: { ...added(this.turn.answer, this.waiting.splice(0)), ...change } };
    const arriving = running.value.get(this.id);
    if (arriving && arriving.status !== status) running.value = new Map(running.value).set(this.id, { ...arriving, status });
    const now = conversations.value.get(this.id); // null: it was deleted meanwhile
    if (now !== undefined) put({ ...now, turns: { ...now.turns, [this.turn.id]: this.turn } }, keeps);
  }
}

async function received(now: Conversation, asked: Turn, arriving: Arriving, signal: AbortSignal): Promise<void> {
  if (!models.value.length) {
    await connect();
    arriving.show({ model: modelName(now.options) }, false);
  }
  const model = modelName(now.options);
  try {
    for await (const delta of chat(request(now, asked, model), key.value, signal)) arriving.add(delta);
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
    await connect(); // the server was started again with another pack
    const other = modelName(now.options);
    if (other === model) throw error;
    arriving.show({ model: other }, false);
    for await (const delta of chat(request(now, asked, other), key.value, signal)) arriving.add(delta);
  }
}

/** The server's name of the chosen model, adapter and mode; a choice that this server does not have is left out. */
function modelName(options: Options): string {
  const { adapter, mode } = options;
  const known = modelOf(options);
  if (known === null) return "";
  const suffix = known.modes.includes(mode) ? `@${mode}` : "";
  return known.name + (known.adapters.includes(adapter) ? `:${adapter}` : "") + suffix;
}

function request(now: Conversation, asked: Turn, model: string): object {
  const { options } = now;
  const given = NUMBER_NAMES.map((name) => [name, options[name]]).filter(([, value]) => value !== null);
  return {
    model,
    messages: messages(now, asked),
    stream: true,
    return_rounds: true,
    truncation: "auto",
    ...Object.fromEntries(given),
    ...(options.think && { reasoning_effort: options.think }),
    ...(options.format && { response_format: format(options) }),
  };
}

function format({ format, schema }: Options): object {
  if (format === "json") return { type: "json_object" };
  try {
    return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  } catch {
    throw new ApiError("The schema of this chat is not JSON: mend it in the chat's settings.", 400);
  }
}

function added(answer: Answer, deltas: Delta[]): Answer {
  const spans = [...answer.spans];
  const notices = [...answer.notices];
  let { thought, stats, finish } = answer;
  for (const { text, thought: more, finish: reason, report } of deltas) {
    if (text || report?.tokens) addSpan(spans, report?.source ?? "target", text, report?.tokens ?? 0);
    thought += more;
    if (report?.notice) notices.push(report.notice);
    stats = report?.stats ?? stats;
    finish = reason ?? finish;
  }
  return { ...answer, thought, spans, notices, stats, finish };
}

function addSpan(spans: Span[], source: string, text: string, tokens: number): void {
  const last = spans.at(-1);
  if (last !== undefined && last[0] === source) spans[spans.length - 1] = [source, last[1] + text, last[2] + tokens];
  else spans.push([source, text, tokens]);
}

/** Announce something of a conversation; of another than the shown one with its title. */
function say(id: string, text: string): void {
  const title = conversations.value.get(id)?.title;
  announce(id === current.value || !title ? text : `${title}: ${text}`);
}

function failed(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof ApiError && error.status === 401) keyWanted.value = message;
  return message;
}
