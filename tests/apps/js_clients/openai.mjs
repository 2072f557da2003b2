import OpenAI from "openai";
import { BASE, CITY, EXTRACT, KEY, LONG, MODEL, PERSON, QUESTION, STORY, all, message, tell } from "./said.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY, maxRetries: 0 });
const { chat, embeddings, models, responses } = client;
const messages = (content) => [{ role: "user", content }];
const story = { model: MODEL, messages: messages(STORY), temperature: 0, max_tokens: 8 };
const weather = { name: "weather", parameters: CITY };
const form = { name: "person", strict: true, schema: PERSON };

const whole = await chat.completions.create(story);
const streamed = await chat.completions.create({ ...story, stream: true, stream_options: { include_usage: true } });
const parts = await all(streamed, (part) => part);
const response = responses.stream({ model: MODEL, input: STORY, temperature: 0, max_output_tokens: 8 });
const called = await chat.completions.create({
  model: MODEL, messages: messages(QUESTION), tools: [{ type: "function", function: weather }],
  tool_choice: "required", temperature: 0, max_tokens: 60,
});
const shaped = await chat.completions.parse({
  model: MODEL, messages: messages(EXTRACT), response_format: { type: "json_schema", json_schema: form },
  temperature: 0, max_tokens: 60,
});
tell({
  models: await all(models.list(), (each) => each.id),
  chat: whole.choices[0].message.content,
  usage: [whole.usage.prompt_tokens, whole.usage.completion_tokens],
  stream: parts.map((part) => part.choices[0]?.delta.content ?? "").join(""),
  streamUsage: [parts.at(-1).usage.prompt_tokens, parts.at(-1).usage.completion_tokens],
  response: (await response.finalResponse()).output_text,
  call: called.choices[0].message.tool_calls.map((each) => [each.function.name, JSON.parse(each.function.arguments)]),
  object: JSON.parse(shaped.choices[0].message.content),
  vectors: (await embeddings.create({ model: MODEL, input: ["a", "b"] })).data.map((each) => each.embedding.length),
  refusal: await message(() => chat.completions.create({ ...story, messages: messages(LONG) })),
});
