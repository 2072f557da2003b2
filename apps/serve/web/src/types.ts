/** The server's JSON, and what the page keeps in the browser. */

/** What GET /props describes; of a model that is not in memory, less: `engine` is empty then. `mode` and `adapter` are those that the server was started with. */
export interface Props {
  name: string;
  version: string;
  engine: string;
  provider: string;
  adapters: string[];
  adapter: string | null;
  modes: string[];
  mode: string;
  /** Whether models can be downloaded into what the server offers. */
  library?: boolean;
  context: number;
  max_tokens: number | null;
  sampling: Record<string, number>;
}

/** A model that GET /v1/models offers, with what its name may add: `NAME:ADAPTER` and `NAME@MODE`. */
export interface Model {
  name: string;
  context: number;
  adapters: string[];
  modes: string[];
}

/** What GET /memory describes, in bytes. */
export interface Memory {
  limit_nbytes: number | null;
  limited_by: string | null;
  leased_nbytes: number;
  holders: { name: string; nbytes: number }[];
  resident_nbytes: number | null;
  peak_nbytes: number | null;
}

/** Statistics of an answer so far; times in seconds. */
export interface Stats {
  mode: string;
  seed: number | null;
  rounds: number;
  proposed: number;
  accepted: number;
  verified_tokens: number;
  unverified_tokens: number;
  /** Rounds without a draft by reason. */
  plain_rounds: Record<string, number>;
  prompt_tokens: number;
  cached_tokens: number;
  time_to_first_token: number;
  tokens_per_second: number;
  plain_tokens_per_second: number | null;
  time_seconds: Record<"draft" | "verify" | "sample" | "host", number>;
}

/** How a streamed event was made: the field `edgedecode` of a chunk. */
export interface Report {
  source: string;
  tokens: number;
  notice?: string;
  stats?: Stats;
}

/** Text whose tokens come from one source. */
export type Span = [source: string, text: string, tokens: number];

export interface Answer {
  model: string;
  /** What the model thought before it answered. */
  thought: string;
  spans: Span[];
  /** Whether JSON was asked for. */
  json: boolean;
  stats: Stats | null;
  notices: string[];
  /** OpenAI's reason, "stopped" by the user, "error", or null while it runs or if the page was closed. */
  finish: string | null;
  error: string | null;
}

export interface Attachment {
  name: string;
  text: string;
}

/** A message in the tree of a conversation. Siblings are versions of one message. */
export interface Turn {
  id: string;
  parent: string | null;
  role: "user" | "assistant";
  text: string;
  files: Attachment[];
  answer: Answer | null;
}

/** How a chat is answered; null and "": the server's default. */
export interface Options {
  model: string;
  mode: string;
  adapter: string;
  /** "on" or "off". */
  think: string;
  /** Text, any JSON, or JSON that follows `schema`. */
  format: "" | "json" | "schema";
  schema: string;
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  max_tokens: number | null;
  seed: number | null;
}

/** The options that are numbers of a request. */
export type NumberName = "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens" | "seed";
export const NUMBER_NAMES: NumberName[] = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** What a chat begins with. */
export interface Start {
  system: string;
  options: Options;
}

export interface Conversation extends Start {
  id: string;
  title: string;
  changed: number;
  turns: Record<string, Turn>;
  /** The chosen child of each turn, and of the root, "". */
  chosen: Record<string, string>;
}

export type Theme = "system" | "light" | "dark";

/** What the user sets for the page. */
export interface Settings {
  theme: Theme;
  /** Whether answers are coloured by the source of their tokens. */
  sources: boolean;
  sidebar: boolean;
}
