/** Numbers in words. */

/** `1 token`, `2 tokens`. */
export function counted(count: number, noun: string): string {
  const plural = /(s|sh|ch|x)$/.test(noun) ? `${noun}es` : `${noun}s`;
  return `${count} ${count === 1 ? noun : plural}`;
}
