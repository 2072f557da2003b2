/** Where tokens come from: kinds of sources, with the names and colours that the terminal has too. */

export type Kind = "target" | "model" | "lookup" | "recycled" | "forced" | "unverified";

export const KINDS: Record<Kind, string> = {
  target: "target",
  model: "draft model",
  lookup: "lookup",
  recycled: "recycled",
  forced: "forced",
  unverified: "unverified",
};

const BY_SOURCE: Record<string, Kind> = {
  target: "target",
  none: "target",
  model: "model",
  trim: "model",
  tree: "model",
  head: "model",
  recycle: "recycled",
  forced: "forced",
  draft: "unverified",
};

/** The kind of a drafter or source; a drafter that this page does not know is a lookup. */
export function kindOf(source: string): Kind {
  return BY_SOURCE[source] ?? "lookup";
}
