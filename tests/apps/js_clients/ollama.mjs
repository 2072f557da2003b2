import { Ollama } from "ollama";
import { BASE, CITY, EXTRACT, KEY, LONG, MODEL, PERSON, QUESTION, STORY, all, message, tell } from "./said.mjs";

const client = new Ollama({ host: BASE, headers: { Authorization: `Bearer ${KEY}` } });
const messages = (content) => [{ role: "user", content }];
const story = { model: MODEL, messages: messages(STORY), options: { temperature: 0, num_predict: 8 } };
const options = { temperature: 0, num_predict: 60 };
const tools = [{ type: "function", function: { name: "weather", description: "The weather", parameters: CITY } }];

const whole = await client.chat(story);
const parts = await all(await client.chat({ ...story, stream: true }), (part) => part);
const called = await client.chat({ ...story, messages: messages(QUESTION), tools, options });
const shaped = await client.chat({ ...story, messages: messages(EXTRACT), format: PERSON, options });
tell({
  models: (await client.list()).models.map((each) => each.name),
  shown: (await client.show({ model: MODEL })).capabilities,
  chat: whole.message.content,
  usage: [whole.prompt_eval_count, whole.eval_count],
  stream: parts.map((part) => part.message.content).join(""),
  streamUsage: [parts.at(-1).prompt_eval_count, parts.at(-1).eval_count],
  call: called.message.tool_calls.map((each) => [each.function.name, each.function.arguments]),
  object: JSON.parse(shaped.message.content),
  vectors: (await client.embed({ model: MODEL, input: ["a", "b"] })).embeddings.map((each) => each.length),
  refusal: await message(() => client.chat({ ...story, messages: messages(LONG) })),
});
