/** The server's JSON, and what the page keeps in the browser. */

/** What GET /props describes. `mode` and `adapter` are those that the server was started with. */
export interface Props {
  name: string;
  version: string;
  engine: string;
  provider: string;
  adapters: string[];
  adapter: string | null;
  modes: string[];
  mode: string;
  context: number;
  max_tokens: number | null;
  sampling: Record<string, number>;
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

/** One pass of the target, as the server reports it: what was drafted for it, and how much of that was accepted. */
export interface ReportedRound {
  drafter: string;
  proposed: number;
  accepted: number;
  reason: string;
}

/** The same as it is kept: an array, because the browser's storage is small. */
export type Round = [drafter: string, proposed: number, accepted: number, reason: string];

/** Statistics of an answer so far; times in seconds. */
export interface Stats {
  mode: string;
  seed: number | null;
  rounds: number;
  proposed: number;
  accepted: number;
  verified_tokens: number;
  unverified_tokens: number;
  target_share: number;
  switches: number;
  handed_over_at: number;
  acceptance_length: number;
  drafters: Record<string, { rounds: number; proposed: number; accepted: number }>;
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
  verified: boolean;
  round?: ReportedRound;
  uncertainty?: number[];
  notice?: string;
  stats?: Stats;
}

/** Text whose tokens come from one source. */
export type Span = [source: string, text: string, tokens: number];

export interface Answer {
  model: string;
  spans: Span[];
  /** The latest rounds, as many as are shown. */
  rounds: Round[];
  /** The latest signals of entropy switching, as many as are shown. */
  uncertainty: number[];
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

export interface Conversation {
  id: string;
  title: string;
  changed: number;
  system: string;
  turns: Record<string, Turn>;
  /** The chosen child of each turn, and of the root, "". */
  chosen: Record<string, string>;
}

export type Theme = "system" | "light" | "dark";

/** What the user sets; null: the server's default. */
export interface Settings {
  mode: string;
  adapter: string;
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  max_tokens: number | null;
  seed: number | null;
  theme: Theme;
  colours: boolean;
  panel: boolean;
}

/** The settings that are numbers of a request. */
export type NumberName = "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens" | "seed";
export const NUMBER_NAMES: NumberName[] = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
