/** How the shown answer was made: speed, sources, rounds, time and memory. */

import type { ComponentChildren, JSX } from "preact";
import { SHOWN_ROUNDS, SHOWN_SIGNALS } from "./answering";
import { IconButton } from "./icons";
import { type Kind, KINDS, kindOf } from "./sources";
import { conversation, memory, set, settings } from "./store";
import { path } from "./tree";
import type { Answer, Memory, Round, Span, Stats } from "./types";
import { counted } from "./words";

const SHOWN_TOKENS = 400;
const TALLEST = 8; // tokens of a draft that fill a column of the rounds

export function Panel({ onClose }: { onClose: () => void }): JSX.Element {
  const answer = path(conversation.value).findLast((turn) => turn.answer !== null)?.answer ?? null;
  return (
    <aside id="panel" class="panel" aria-label="How the answer was made" tabIndex={0}>
      <div class="side-head">
        <h2>How it was made</h2>
        <IconButton icon="close" label="Close the panel" class="close" onClick={onClose} />
      </div>
      {answer === null ? <p class="faint">Speed, drafts and memory of an answer appear here.</p> : <AnswerFigures answer={answer} />}
      {memory.value ? <MemoryFigures memory={memory.value} /> : <p class="faint">The server does not tell its memory now.</p>}
    </aside>
  );
}

function AnswerFigures({ answer }: { answer: Answer }): JSX.Element {
  const { stats } = answer;
  return (
    <>
      {stats && <Speed stats={stats} />}
      <Sources spans={answer.spans} />
      {stats && answer.rounds.length > 0 && (stats.mode !== "switch" || stats.proposed > 0) && <Rounds rounds={answer.rounds} stats={stats} />}
      {stats && answer.uncertainty.length > 0 && <Uncertainty values={answer.uncertainty} limit={stats.handed_over_at} stats={stats} />}
      {stats && <Time stats={stats} />}
    </>
  );
}

function Section({ title, children }: { title: string; children: ComponentChildren }): JSX.Element {
  return (
    <section>
      <h3>{title}</h3>
      {children}
    </section>
  );
}

/** A number with its meaning; `name` is how tests find it. */
function Figure({ name, value, children }: { name: string; value: string; children: ComponentChildren }): JSX.Element {
  return (
    <p class="figure">
      <strong data-figure={name}>{value}</strong> <span>{children}</span>
    </p>
  );
}

function Speed({ stats }: { stats: Stats }): JSX.Element {
  const { tokens_per_second: speed } = stats;
  const drafts = stats.proposed + stats.unverified_tokens > 0;
  const plain = drafts ? stats.plain_tokens_per_second : null; // else this answer is the baseline itself
  const most = Math.max(speed, plain ?? 0, 1);
  return (
    <Section title="Speed">
      <Figure name="speed" value={speed.toFixed(0)}>
        tokens/s
        {plain !== null && speed > 0 && `, ${(speed / plain).toFixed(2)} times plain decoding, measured in this answer`}
        {!drafts && speed > 0 && ", without drafts"}
      </Figure>
      <Meter label="this answer" share={speed / most} kind="model" />
      {plain !== null && <Meter label={`plain, about ${plain.toFixed(0)}`} share={plain / most} kind="target" />}
      <p class="faint">
        First token after <b data-figure="first-token">{(1000 * stats.time_to_first_token).toFixed(0)}</b> ms; prompt of{" "}
        <b data-figure="prompt">{stats.prompt_tokens}</b> {stats.prompt_tokens === 1 ? "token" : "tokens"}, <b data-figure="cached">{stats.cached_tokens}</b> of them cached.
        {stats.seed !== null && Number.isSafeInteger(stats.seed) && ` Seed ${stats.seed}.`}
      </p>
    </Section>
  );
}

function Meter({ label, share, kind }: { label: string; share: number; kind: Kind }): JSX.Element {
  return (
    <div class="meter">
      <span class={`fill ${kind}`} style={{ width: `${100 * share}%` }} />
      <span class="meter-label">{label}</span>
    </div>
  );
}

function Sources({ spans }: { spans: Span[] }): JSX.Element {
  const counts = new Map<Kind, number>();
  for (const [source, , tokens] of spans) {
    if (tokens > 0) counts.set(kindOf(source), (counts.get(kindOf(source)) ?? 0) + tokens);
  }
  const cells = spans.flatMap(([source, , tokens]) => Array<Kind>(tokens).fill(kindOf(source))).slice(-SHOWN_TOKENS);
  return (
    <Section title="Where tokens came from">
      <div class="strip" aria-hidden="true">
        {cells.map((kind, index) => (
          <i key={index} class={`fill ${kind}`} />
        ))}
      </div>
      <ul class="legend">
        {[...counts].map(([kind, count]) => (
          <li key={kind}>
            <i class={`fill ${kind}`} aria-hidden="true" /> {KINDS[kind]} <b data-figure={`tokens-${kind}`}>{count}</b>
          </li>
        ))}
      </ul>
      <label class="check">
        <input type="checkbox" checked={settings.value.colours} onChange={(event) => set({ colours: event.currentTarget.checked })} />
        Colour the text by source
      </label>
    </Section>
  );
}

function Rounds({ rounds, stats }: { rounds: Round[]; stats: Stats }): JSX.Element {
  const shown = rounds.slice(-SHOWN_ROUNDS);
  const share = stats.proposed ? `${Math.round((100 * stats.accepted) / stats.proposed)}%` : "–";
  return (
    <Section title="Rounds: what the scheduler chose">
      <svg class="rounds" viewBox={`0 0 ${SHOWN_ROUNDS * 4} 40`} preserveAspectRatio="none" role="img" aria-label={inWords(shown)}>
        {shown.map(([drafter, proposed, accepted, reason], index) => {
          const scale = 36 / TALLEST;
          const [full, filled] = [Math.min(proposed, TALLEST) * scale, Math.min(accepted, TALLEST) * scale];
          return (
            <g key={rounds.length - shown.length + index} class={kindOf(drafter)}>
              <title>{proposed ? `${drafter}: ${accepted} of ${proposed} accepted` : `no draft${reason && `: ${reason}`}`}</title>
              {proposed > 0 && <rect class="proposed" x={index * 4} y={38 - full} width="3" height={full} />}
              {accepted > 0 && <rect class="accepted" x={index * 4} y={38 - filled} width="3" height={filled} />}
              <rect class="pass" x={index * 4} y="38" width="3" height="2" />
            </g>
          );
        })}
      </svg>
      <p class="faint">A column is one pass of the target: pale what was drafted, full what was accepted.</p>
      <Figure name="acceptance" value={share}>
        of <b data-figure="proposed">{stats.proposed}</b> drafted tokens accepted (<b data-figure="accepted">{stats.accepted}</b>)
      </Figure>
      <Figure name="acceptance-length" value={stats.acceptance_length.toFixed(2)}>
        tokens per pass, in <b data-figure="rounds">{stats.rounds}</b> {stats.rounds === 1 ? "pass" : "passes"}
      </Figure>
      <table>
        <thead>
          <tr>
            <th scope="col">drafter</th>
            <th scope="col">rounds</th>
            <th scope="col">accepted</th>
          </tr>
        </thead>
        <tbody>
          {Object.entries(stats.drafters).map(([name, count]) => (
            <tr key={name}>
              <td>
                <i class={`fill ${kindOf(name)}`} aria-hidden="true" /> {name}
              </td>
              <td>{count.rounds}</td>
              <td>
                {count.accepted} of {count.proposed}
              </td>
            </tr>
          ))}
          {Object.entries(withPrompt(stats)).map(([reason, count]) => (
            <tr key={reason}>
              <td>
                <i class="fill target" aria-hidden="true" /> none: {reason}
              </td>
              <td>{count}</td>
              <td />
            </tr>
          ))}
        </tbody>
      </table>
    </Section>
  );
}

/** The shown rounds in words. */
function inWords(rounds: Round[]): string {
  const drafted = rounds.filter(([, proposed]) => proposed > 0);
  const [proposed, accepted] = [sum(drafted, (each) => each[1]), sum(drafted, (each) => each[2])];
  return `Of the last ${counted(rounds.length, "pass")}, ${drafted.length} had a draft; ${accepted} of ${counted(proposed, "drafted token")} accepted.`;
}

/** Rounds without a draft by reason; the prompt's own pass never has one. */
function withPrompt(stats: Stats): Record<string, number> {
  const counted = sum(Object.values(stats.drafters), (each) => each.rounds) + sum(Object.values(stats.plain_rounds), (each) => each);
  const rest = stats.rounds - counted;
  return { ...stats.plain_rounds, ...(rest > 0 ? { "the prompt": rest } : {}) };
}

function sum<Kind>(all: Kind[], value: (each: Kind) => number): number {
  return all.reduce((total, each) => total + value(each), 0);
}

/** The draft model's uncertainty before each token, on a logarithmic scale, and where the target took over. */
function Uncertainty({ values, limit, stats }: { values: number[]; limit: number; stats: Stats }): JSX.Element {
  const shown = values.slice(-SHOWN_SIGNALS);
  const height = (value: number): number => Math.max(1, 40 + 10 * Math.log10(Math.max(value, 1e-4)));
  const line = 40 - height(limit);
  return (
    <Section title="Uncertainty of the draft model">
      <svg class="rounds" viewBox={`0 0 ${SHOWN_SIGNALS} 40`} preserveAspectRatio="none" role="img" aria-label={`Of the last ${counted(shown.length, "token")}, the draft model was sure of ${shown.filter((value) => value < limit).length}.`}>
        {shown.map((value, index) => (
          <rect
            key={values.length - shown.length + index}
            class={value < limit ? "unverified" : "target"}
            x={index}
            y={40 - Math.min(40, height(value))}
            width="0.8"
            height={Math.min(40, height(value))}
          />
        ))}
        <line x1="0" x2={SHOWN_SIGNALS} y1={line} y2={line} />
      </svg>
      <Figure name="unverified" value={String(stats.unverified_tokens)}>
        tokens by the draft model, not verified; <b data-figure="verified">{stats.verified_tokens}</b> by the target (
        {Math.round(100 * stats.target_share)}%), {counted(stats.switches, "switch")}
      </Figure>
      <p class="faint">Logarithmic, from 0.0001 to 1. The target writes each token above the line, {limit.toPrecision(2)}.</p>
    </Section>
  );
}

const PARTS = { draft: "drafting", verify: "target's passes", sample: "sampling", host: "rest" } as const;

function Time({ stats }: { stats: Stats }): JSX.Element {
  const parts = Object.entries(PARTS).map(([name, label]) => ({ name, label, seconds: stats.time_seconds[name as keyof typeof PARTS] }));
  const total = sum(parts, (part) => part.seconds);
  return (
    <Section title="Time after the first token">
      <Bar parts={parts.map(({ name, label, seconds }) => ({ name, label, share: total ? seconds / total : 0 }))} />
      <p class="faint">
        <b data-figure="time">{(1000 * total).toFixed(0)}</b> ms in all
      </p>
    </Section>
  );
}

interface Part {
  name: string;
  label: string;
  share: number;
  /** What the legend says; without it the share. */
  value?: string;
}

/** A bar of shares with its legend. */
function Bar({ parts }: { parts: Part[] }): JSX.Element {
  return (
    <>
      <div class="bar" aria-hidden="true">
        {parts.map((part, index) => (
          <i key={part.name} class={`part part-${index}`} style={{ width: `${100 * part.share}%` }} />
        ))}
      </div>
      <ul class="legend">
        {parts.map((part, index) => (
          <li key={part.name}>
            <i class={`part part-${index}`} aria-hidden="true" /> {part.label} <b>{part.value ?? `${Math.round(100 * part.share)}%`}</b>
          </li>
        ))}
      </ul>
    </>
  );
}

const SHOWN_HOLDERS = 5;

function MemoryFigures({ memory: found }: { memory: Memory }): JSX.Element {
  const { leased_nbytes: leased, limit_nbytes: limit } = found;
  const shown = found.holders.slice(0, SHOWN_HOLDERS);
  const others = leased - sum(shown, (each) => each.nbytes);
  const parts = [...shown, ...(others > 0 ? [{ name: "other", nbytes: others }] : [])];
  const asked = found.limited_by === "--memory";
  const whole = asked && limit !== null ? limit : leased; // a machine's memory would make all parts thin
  return (
    <Section title="Memory">
      <Figure name="leased" value={megabytes(leased)}>
        planned{limit !== null && `, of ${megabytes(limit)} (${asked ? "budget" : found.limited_by})`}
      </Figure>
      <Bar parts={parts.map(({ name, nbytes }) => ({ name, label: holder(name), share: whole ? nbytes / whole : 0, value: megabytes(nbytes) }))} />
      {asked && limit !== null && <p class="faint">The rest of the bar, {megabytes(limit - leased)}, is free.</p>}
      {found.resident_nbytes !== null && (
        <p class="faint">
          The process holds <b data-figure="resident">{megabytes(found.resident_nbytes)}</b>
          {found.peak_nbytes !== null && `, at most ${megabytes(found.peak_nbytes)} so far`}.
        </p>
      )}
    </Section>
  );
}

function megabytes(nbytes: number): string {
  return nbytes < 1e9 ? `${(nbytes / 1e6).toFixed(1)} MB` : `${(nbytes / 1e9).toFixed(1)} GB`;
}

/** A lease's name in words: `kv:target` is the target's keys and values. */
function holder(name: string): string {
  const [kind, owner] = name.split(":");
  const word = { kv: "keys and values", work: "workspace" }[kind ?? ""] ?? kind ?? name;
  return owner === undefined ? word.replace(/ \(.*\)$/, "") : `${word}, ${owner}`;
}
