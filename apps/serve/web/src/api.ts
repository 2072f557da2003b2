/** Calls to the server that served this page. */

import type { Memory, Model, Props, Report } from "./types";

/** A refusal of the server, or no answer at all (status 0). */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** A streamed event, as far as the page uses it. */
export interface Delta {
  text: string;
  thought: string;
  finish: string | null;
  report: Report | null;
  /** What the server does before the answer begins. */
  status: string;
}

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  edgedecode?: Report;
  error?: { message: string };
}

const GONE = "The server does not answer. Is `edgedecode serve` running?";
const CUT = "The answer was cut off: the connection to the server was lost.";
const KEY = /^[\x21-\x7e]*$/;

export async function getProps(key: string): Promise<Props> {
  return (await asked("props", key)).json() as Promise<Props>;
}

/** The models that the server offers: names that only add an adapter or a mode to another one belong to it. */
export async function getModels(key: string): Promise<Model[]> {
  const { data } = (await (await asked("v1/models", key)).json()) as { data: { id: string; context_length?: number }[] };
  const models: Model[] = [];
  for (const { id, context_length: context } of data) {
    const base = models.find((each) => id.startsWith(`${each.name}:`) || id.startsWith(`${each.name}@`));
    if (base === undefined) models.push({ name: id, context: context ?? 0, adapters: [], modes: [] });
    else (id[base.name.length] === "@" ? base.modes : base.adapters).push(id.slice(base.name.length + 1));
  }
  return models;
}

export async function getMemory(key: string): Promise<Memory> {
  return (await asked("memory", key)).json() as Promise<Memory>;
}

/** The events of an answer. Throws ApiError, and AbortError once `signal` is aborted. */
export async function* chat(body: object, key: string, signal: AbortSignal): AsyncGenerator<Delta> {
  const request = { method: "POST", body: JSON.stringify(body), signal };
  const reply = await asked("v1/chat/completions", key, request);
  if (reply.body === null) throw new ApiError(GONE, 0);
  for await (const line of lines(reply.body)) {
    if (line.startsWith(": ")) yield { text: "", thought: "", finish: null, report: null, status: line.slice(2) };
    if (!line.startsWith("data: ")) continue;
    const data = line.slice(6);
    if (data === "[DONE]") return;
    const chunk = parsed(data) as Chunk;
    if (chunk.error !== undefined) throw new ApiError(chunk.error.message, 500);
    const choice = chunk.choices?.[0];
    if (choice === undefined) continue;
    const { content, reasoning_content: thought } = choice.delta ?? {};
    yield { text: content ?? "", thought: thought ?? "", finish: choice.finish_reason ?? null, report: chunk.edgedecode ?? null, status: "" };
  }
  throw new ApiError(CUT, 0);
}

/** How far a download is, in bytes; 0 of 0: not known. */
export interface Progress {
  status: string;
  completed: number;
  total: number;
}

/** The progress of a download into the server's library. Throws ApiError, and AbortError once `signal` is aborted. */
export async function* pulled(model: string, key: string, signal: AbortSignal): AsyncGenerator<Progress> {
  const reply = await asked("api/pull", key, { method: "POST", body: JSON.stringify({ model }), signal });
  if (reply.body === null) throw new ApiError(GONE, 0);
  for await (const line of lines(reply.body)) {
    if (!line.trim()) continue;
    const { error, status = "", completed = 0, total = 0 } = parsed(line) as Partial<Progress> & { error?: string };
    if (error !== undefined) throw new ApiError(error, 500);
    yield { status, completed, total };
  }
}

async function* lines(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = stream.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw isAbort(error) ? error : new ApiError(CUT, 0);
      });
      if (done) return;
      const whole = (rest + value).split("\n");
      rest = whole.pop() ?? "";
      yield* whole;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

async function asked(path: string, key: string, init: RequestInit = {}): Promise<Response> {
  if (!KEY.test(key)) throw new ApiError("The key has characters that no key has.", 401);
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let reply: Response;
  try {
    reply = await fetch(path, { ...init, headers });
  } catch (error) {
    throw isAbort(error) ? error : new ApiError(GONE, 0);
  }
  if (!reply.ok) throw new ApiError(await refusal(reply), reply.status);
  return reply;
}

function parsed(data: string): unknown {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent something else than an answer.", 0);
  }
}

function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

async function refusal(reply: Response): Promise<string> {
  try {
    if (reply.status === 401) return "The server needs its key, and this is another one.";
    const { error } = (await reply.json()) as { error: string | { message: string } }; // of Ollama's API, or OpenAI's
    const message = typeof error === "string" ? error : error.message;
    return message.charAt(0).toUpperCase() + message.slice(1);
  } catch {
    return `The server answered with status ${reply.status}.`;
  }
}
