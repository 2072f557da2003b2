/** Numbers in words. */

/** `1 token`, `2,048 tokens`. */
export function counted(count: number, noun: string): string {
  const plural = /(s|sh|ch|x)$/.test(noun) ? `${noun}es` : `${noun}s`;
  return `${grouped(count)} ${count === 1 ? noun : plural}`;
}

/** `2,048`. */
export function grouped(count: number): string {
  return Math.round(count).toLocaleString("en");
}
