import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vite";

/** The digest of everything that the page is built from, so that a test can tell stale built files. */
function sourcesDigest(): string {
  const files = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];
  files.push(...readdirSync("src").map((name) => join("src", name)));
  const digest = createHash("sha256");
  for (const name of files.sort()) digest.update(`${name}\0`).update(readFileSync(name)).update("\0");
  return digest.digest("hex");
}

export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    license: { fileName: "assets/licenses.md" },
    rolldownOptions: {
      output: {
        entryFileNames: "assets/page.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/page[extname]",
      },
    },
  },
  plugins: [
    {
      name: "sources-digest",
      generateBundle() {
        this.emitFile({ type: "asset", fileName: "assets/sources.sha256", source: `${sourcesDigest()}\n` });
      },
    },
  ],
  server: { proxy: Object.fromEntries(["/v1", "/props", "/memory"].map((path) => [path, "http://127.0.0.1:8000"])) },
});
