/** How an answer was made: a line of figures below it, and the details that the line opens. */

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { lookAtMemory } from "./answering";
import { Icon } from "./icons";
import { MODIFIER } from "./keys";
import { type Kind, KINDS, kindOf } from "./sources";
import { memory, model, set, settings } from "./store";
import type { Answer, Memory, Span, Stats, Turn } from "./types";
import { counted, grouped } from "./words";

const SHOWN_TOKENS = 600;
const MEMORY_PERIOD = 2000; // milliseconds

/** The turn whose details are open. */
export const opened = signal("");

export function toggleDetails(id: string): void {
  opened.value = opened.value === id ? "" : id;
}

const WHY: Record<string, string> = {
  length: "cut off at the limit of tokens",
  stopped: "stopped",
};

/** What is known of an answer, in a line. */
export function Figures({ turn, answer }: { turn: Turn; answer: Answer }): JSX.Element {
  const tokens = answer.spans.reduce((sum, [, , count]) => sum + count, 0);
  const gain = answer.stats && speedUp(answer.stats);
  const parts = [
    tokens > 0 ? counted(tokens, "token") : "",
    answer.stats !== null && answer.finish !== "stopped" ? `${grouped(answer.stats.tokens_per_second)} tokens/s` : "",
    gain ? `${gain} times plain decoding` : "",
    answer.model.split(/[:@]/)[0] === model.value?.name ? "" : answer.model,
    answer.finish === null ? "interrupted" : (WHY[answer.finish] ?? ""),
  ];
  const text = parts.filter(Boolean).join(" · ");
  if (answer.stats === null) return <small class="figures">{text}</small>;
  const open = opened.value === turn.id;
  return (
    <button
      type="button"
      class="figures"
      title={`How this answer was made (${MODIFIER}+I for the last)`}
      aria-expanded={open}
      aria-controls={open ? `details-${turn.id}` : undefined}
      onClick={() => toggleDetails(turn.id)}
    >
      {text}
      <Icon name={open ? "up" : "more"} />
    </button>
  );
}

/** How many times as fast as plain decoding an answer was; "": not measured, or not faster. */
function speedUp({ proposed, unverified_tokens: unverified, tokens_per_second: speed, plain_tokens_per_second: plain }: Stats): string {
  if (plain === null || !plain || proposed + unverified === 0) return "";
  const times = (speed / plain).toFixed(2);
  return Number(times) > 1 ? times : "";
}

export function Details({ turn, answer, stats }: { turn: Turn; answer: Answer; stats: Stats }): JSX.Element {
  const shown = useRef<HTMLElement>(null);
  const complete = memory.value !== null;
  useEffect(() => shown.current?.scrollIntoView({ block: "nearest" }), [complete]);
  useEffect(() => {
    void lookAtMemory();
    const timer = setInterval(() => void lookAtMemory(), MEMORY_PERIOD);
    return () => clearInterval(timer);
  }, []);
  const { prompt_tokens: prompt, cached_tokens: cached, seed } = stats;
  const gain = speedUp(stats);
  return (
    <section ref={shown} class="details" id={`details-${turn.id}`} aria-label="How this answer was made">
      <p>
        {drafting(stats)} {!gain && stats.proposed > 0 && "No speed-up over plain decoding was measured."}
      </p>
      <Sources spans={answer.spans} />
      <dl>
        <Row name="Speed">
          <Value name="speed">{grouped(stats.tokens_per_second)}</Value> tokens/s
          {gain && (
            <>
              , <Value name="speed-up">{gain}</Value> times plain decoding, measured in this answer
            </>
          )}
        </Row>
        <Row name="First token">
          <Value name="first-token">{grouped(1000 * stats.time_to_first_token)}</Value> ms, prompt of <Value name="prompt">{prompt}</Value>{" "}
          {prompt === 1 ? "token" : "tokens"}
          {cached > 0 && `, ${grouped(cached)} of them cached`}
        </Row>
        <Row name="Time">{time(stats)}</Row>
        {memory.value && <MemoryRow memory={memory.value} />}
        <Row name="Model">{answer.model}</Row>
        {seed !== null && Number.isSafeInteger(seed) && <Row name="Seed">{seed}</Row>}
      </dl>
    </section>
  );
}

function Row({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** A number; `name` is how tests find it. */
function Value({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return <b data-figure={name}>{children}</b>;
}

/** How many passes of the model the answer took, and how many tokens were drafted. */
function drafting(stats: Stats): ComponentChildren {
  const { proposed, accepted, rounds, verified_tokens: verified, unverified_tokens: unverified } = stats;
  if (unverified > 0) {
    return (
      <>
        The draft model wrote <Value name="unverified">{unverified}</Value> tokens, which were not verified, and the target{" "}
        <Value name="verified">{verified}</Value>.
      </>
    );
  }
  const passes = (
    <>
      {counted(verified, "token")} in <Value name="rounds">{rounds}</Value> {rounds === 1 ? "pass" : "passes"} of the model
    </>
  );
  if (proposed === 0) return <>{passes}, without drafts{stats.mode === "plain" ? "" : whyNone(stats)}.</>;
  return (
    <>
      {passes}: <Value name="accepted">{accepted}</Value> of <Value name="proposed">{proposed}</Value> drafted tokens were accepted.
    </>
  );
}

/** The most frequent reason of the rounds without a draft. */
function whyNone({ plain_rounds: rounds }: Stats): string {
  const [reason] = Object.entries(rounds).sort(([, one], [, other]) => other - one)[0] ?? [""];
  return reason && `: ${reason}`;
}

const PARTS = { verify: "passes", draft: "drafting", sample: "sampling", host: "the rest" } as const;

function time({ time_seconds: seconds }: Stats): ComponentChildren {
  const total = Object.values(seconds).reduce((sum, each) => sum + each, 0);
  const shares = Object.entries(PARTS).map(([name, label]) => [label, (seconds[name as keyof typeof PARTS] ?? 0) / (total || 1)] as const);
  const shown = shares.filter(([, share]) => share >= 0.005).map(([label, share]) => `${label} ${Math.round(100 * share)}%`);
  return (
    <>
      <Value name="time">{grouped(1000 * total)}</Value> ms after the first token{shown.length > 0 && `: ${shown.join(", ")}`}
    </>
  );
}

function Sources({ spans }: { spans: Span[] }): JSX.Element | null {
  const counts = new Map<Kind, number>();
  for (const [source, , tokens] of spans) {
    if (tokens > 0) counts.set(kindOf(source), (counts.get(kindOf(source)) ?? 0) + tokens);
  }
  if (counts.size < 2) return null;
  const cells = spans.flatMap(([source, , tokens]) => Array<Kind>(tokens).fill(kindOf(source))).slice(-SHOWN_TOKENS);
  return (
    <>
      <div class="strip" aria-hidden="true">
        {cells.map((kind, index) => (
          <i key={index} class={`fill ${kind}`} />
        ))}
      </div>
      <div class="legend">
        <ul aria-label="Where the tokens came from">
          {[...counts].map(([kind, count]) => (
            <li key={kind}>
              <i class={`fill ${kind}`} aria-hidden="true" /> {KINDS[kind]} <Value name={`tokens-${kind}`}>{count}</Value>
            </li>
          ))}
        </ul>
        <label>
          <input type="checkbox" checked={settings.value.sources} onChange={(event) => set({ sources: event.currentTarget.checked })} /> Show in the
          text
        </label>
      </div>
    </>
  );
}

/** The memory that the server plans with now: weights, caches, and everything else. */
function MemoryRow({ memory: { holders, leased_nbytes: leased, limit_nbytes: limit, limited_by: by } }: { memory: Memory }): JSX.Element {
  const held = (kind: string): number =>
    holders.filter((each) => each.name.startsWith(`${kind}:`)).reduce((sum, each) => sum + each.nbytes, 0);
  const [weights, cache] = [held("weights"), held("kv")];
  return (
    <Row name="Memory">
      <Value name="leased">{megabytes(leased)}</Value>
      {by === "--memory" && limit !== null && ` of a budget of ${megabytes(limit)}`}: weights {megabytes(weights)}
      {cache > 0 && `, cache ${megabytes(cache)}`}, the rest {megabytes(leased - weights - cache)}
    </Row>
  );
}

function megabytes(nbytes: number): string {
  return nbytes < 1e9 ? `${(nbytes / 1e6).toFixed(0)} MB` : `${(nbytes / 1e9).toFixed(1)} GB`;
}
