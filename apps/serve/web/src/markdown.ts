/** Markdown to HTML that is safe to insert: code is highlighted, images become links, other tags are shown as text. */

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

// Characters of code that is highlighted. What still grows is highlighted again and again, so it is less.
const HIGHLIGHTED = 100_000;
const HIGHLIGHTED_GROWING = 3_000;
const SAFE_LINK = /^(https?|mailto):/i;

/** A renderer that highlights code of up to `most` characters. */
function renderer(most: number): Marked {
  return new Marked({
    gfm: true,
    renderer: {
      code({ text, lang }) {
        const language = (lang ?? "").trim().split(/\s+/)[0] ?? "";
        const known = hljs.getLanguage(language) !== undefined && text.length < most;
        const inner = known ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escaped(text);
        const head = `<div class="code-head"><span>${escaped(language)}</span><button type="button" class="copy-code">Copy</button></div>`;
        return `<div class="code">${head}<pre tabindex="0"><code>${inner}\n</code></pre></div>`;
      },
      heading({ tokens, depth }) {
        const level = Math.min(6, depth + 2); // below the page's own headings
        return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
      },
      image({ href, text }) {
        return `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
      },
      html({ text }) {
        return escaped(text); // a model writes about tags more often than with them
      },
    },
  });
}

const complete = renderer(HIGHLIGHTED);
const growing = renderer(HIGHLIGHTED_GROWING);

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  if (!SAFE_LINK.test(node.getAttribute("href") ?? "")) node.removeAttribute("href");
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

/** A top-level block of a text: while the text grows, all but the last stay the same. */
export interface Block {
  /** Blocks with the same key have the same HTML. */
  key: string;
  token: Token;
}

export function blocks(text: string): Block[] {
  const tokens = complete.lexer(text);
  const links = JSON.stringify(tokens.links); // a link's address may stand anywhere in the text
  return tokens
    .filter((token) => token.type !== "space" && token.type !== "def")
    .map((token) => ({ key: `${token.raw}\0${links}`, token }));
}

/** grows: whether the block is the last one of a text that is not complete. */
export function html(block: Block, grows: boolean): string {
  return DOMPurify.sanitize((grows ? growing : complete).parser([block.token]), {
    FORBID_TAGS: ["style", "form", "img", "svg", "math"],
    FORBID_ATTR: ["style", "id", "name"],
  });
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
