/** Markdown to HTML that is safe to insert: code is highlighted, images become links, other tags are removed. */

import DOMPurify from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { Marked, type Token } from "marked";

const LANGUAGES = { bash, c, cpp, css, diff, go, java, javascript, json, kotlin, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

const HIGHLIGHTED = 20_000; // characters: longer code is shown plainly, since it is coloured again while it grows

const marked = new Marked({
  gfm: true,
  renderer: {
    code({ text, lang }) {
      const language = (lang ?? "").trim().split(/\s+/)[0] ?? "";
      const known = hljs.getLanguage(language) !== undefined && text.length < HIGHLIGHTED;
      const html = known ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escaped(text);
      const head = `<div class="code-head"><span>${escaped(language)}</span><button type="button" class="copy-code">Copy</button></div>`;
      return `<div class="code">${head}<pre tabindex="0"><code>${html}\n</code></pre></div>`;
    },
    image({ href, text }) {
      return `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
    },
    html({ text }) {
      return escaped(text); // a model writes about tags more often than with them
    },
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});

/** The top-level blocks of a text: while it grows, all but the last stay the same. */
export function blocks(text: string): string[] {
  return marked
    .lexer(text)
    .filter((token: Token) => token.type !== "space")
    .map((token: Token) => token.raw);
}

export function html(block: string): string {
  return DOMPurify.sanitize(marked.parse(block, { async: false }), {
    ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
    FORBID_TAGS: ["style", "form", "img", "svg", "math"],
    FORBID_ATTR: ["style", "id", "name"],
  });
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
