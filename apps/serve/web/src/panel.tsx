/** How the shown answer was made: speed, sources, rounds, time and memory. */

import type { ComponentChildren, JSX } from "preact";
import { IconButton } from "./icons";
import { type Kind, KINDS, kindOf } from "./sources";
import { conversation, memory, set, settings } from "./store";
import { path } from "./tree";
import type { Answer, Memory, Round, Span, Stats } from "./types";

const SHOWN_ROUNDS = 64;
const SHOWN_TOKENS = 400;
const SHOWN_SIGNALS = 160;
const TALLEST = 8; // tokens of a draft that fill a column of the rounds

export function Panel({ onClose }: { onClose: () => void }): JSX.Element {
  const answer = path(conversation.value).findLast((turn) => turn.answer !== null)?.answer ?? null;
  return (
    <aside id="panel" class="panel" aria-label="How the answer was made" tabIndex={0}>
      <div class="side-head">
        <h2>How it was made</h2>
        <IconButton icon="close" label="Close the panel" onClick={onClose} />
      </div>
      {answer === null ? <p class="faint">Speed, drafts and memory of an answer appear here.</p> : <AnswerFigures answer={answer} />}
      {memory.value && <MemoryFigures memory={memory.value} />}
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
  const { tokens_per_second: speed, plain_tokens_per_second: plain } = stats;
  const most = Math.max(speed, plain ?? 0, 1);
  return (
    <Section title="Speed">
      <Figure name="speed" value={speed.toFixed(0)}>
        tokens/s{plain !== null && speed > 0 && `, ${(speed / plain).toFixed(2)} times plain decoding, ${stats.plain_is_measured ? "measured in this answer" : "estimated"}`}
      </Figure>
      <Meter label="this answer" share={speed / most} kind="model" />
      {plain !== null && <Meter label={`plain, about ${plain.toFixed(0)}`} share={plain / most} kind="target" />}
      <p class="faint">
        First token after <b data-figure="first-token">{(1000 * stats.time_to_first_token).toFixed(0)}</b> ms; prompt of{" "}
        <b data-figure="prompt">{stats.prompt_tokens}</b> tokens, <b data-figure="cached">{stats.cached_tokens}</b> of them cached.
        {stats.seed !== null && ` Seed ${stats.seed}.`}
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
  for (const { source, tokens } of spans) counts.set(kindOf(source), (counts.get(kindOf(source)) ?? 0) + tokens);
  const cells = spans.flatMap(({ source, tokens }) => Array<Kind>(tokens).fill(kindOf(source))).slice(-SHOWN_TOKENS);
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
      <svg class="rounds" viewBox={`0 0 ${SHOWN_ROUNDS * 4} 40`} preserveAspectRatio="none" role="img" aria-label={`The last ${shown.length} rounds`}>
        {shown.map((round, index) => {
          const { drafter, proposed, accepted } = round;
          const scale = 36 / TALLEST;
          const [full, filled] = [Math.min(proposed, TALLEST) * scale, Math.min(accepted, TALLEST) * scale];
          return (
            <g key={rounds.length - shown.length + index} class={kindOf(drafter)}>
              <title>{round.proposed ? `${drafter}: ${accepted} of ${proposed} accepted` : `no draft${round.reason && `: ${round.reason}`}`}</title>
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
        tokens per pass, in <b data-figure="rounds">{stats.rounds}</b> passes
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
          {Object.entries(stats.plain_rounds).map(([reason, count]) => (
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

/** The draft model's uncertainty before each token, on a logarithmic scale, and where the target took over. */
function Uncertainty({ values, limit, stats }: { values: number[]; limit: number; stats: Stats }): JSX.Element {
  const shown = values.slice(-SHOWN_SIGNALS);
  const height = (value: number): number => Math.max(1, 40 + 10 * Math.log10(Math.max(value, 1e-4)));
  const line = 40 - height(limit);
  return (
    <Section title="Uncertainty of the draft model">
      <svg class="rounds" viewBox={`0 0 ${SHOWN_SIGNALS} 40`} preserveAspectRatio="none" role="img" aria-label={`The last ${shown.length} tokens`}>
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
        {Math.round(100 * stats.target_share)}%), {stats.switches} switches
      </Figure>
      <p class="faint">The target writes each token above the line, {limit.toPrecision(2)}.</p>
    </Section>
  );
}

const PARTS = { draft: "drafting", verify: "target's passes", sample: "sampling", host: "rest" } as const;

function Time({ stats }: { stats: Stats }): JSX.Element {
  const parts = Object.entries(PARTS).map(([name, label]) => ({ name, label, seconds: stats.time_seconds[name as keyof typeof PARTS] }));
  const total = parts.reduce((sum, part) => sum + part.seconds, 0);
  return (
    <Section title="Time after the first token">
      <Bar parts={parts.map(({ name, label, seconds }) => ({ name, label, share: total ? seconds / total : 0 }))} />
      <p class="faint">
        <b data-figure="time">{(1000 * total).toFixed(0)}</b> ms
      </p>
    </Section>
  );
}

interface Part {
  name: string;
  label: string;
  share: number;
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
            <i class={`part part-${index}`} aria-hidden="true" /> {part.label} <b>{Math.round(100 * part.share)}%</b>
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
  const others = leased - shown.reduce((sum, each) => sum + each.nbytes, 0);
  const parts = [...shown.map(({ name, nbytes }) => ({ name, nbytes })), ...(others > 0 ? [{ name: "other", nbytes: others }] : [])];
  return (
    <Section title="Memory">
      <Figure name="leased" value={megabytes(leased)}>
        planned{limit !== null && `, of ${megabytes(limit)} (${found.limited_by === "--memory" ? "budget" : found.limited_by})`}
      </Figure>
      {limit !== null && (
        <div class="meter">
          <span class="fill lookup" style={{ width: `${(100 * leased) / limit}%` }} />
          <span class="meter-label">{((100 * leased) / limit).toFixed(leased / limit < 0.1 ? 1 : 0)}% of the budget</span>
        </div>
      )}
      <Bar parts={parts.map(({ name, nbytes }) => ({ name, label: holder(name), share: leased ? nbytes / leased : 0 }))} />
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
