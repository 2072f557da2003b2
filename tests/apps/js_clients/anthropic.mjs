import Anthropic from "@anthropic-ai/sdk";
import { BASE, CITY, EXTRACT, KEY, LONG, MODEL, PERSON, QUESTION, STORY, all, message, tell } from "./said.mjs";

const client = new Anthropic({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
const messages = (content) => [{ role: "user", content }];
const story = { model: MODEL, messages: messages(STORY), temperature: 0, max_tokens: 8 };
const weather = { name: "weather", description: "The weather", input_schema: CITY };
const asks = { model: MODEL, messages: messages(QUESTION), tool_choice: { type: "any" }, temperature: 0, max_tokens: 60 };

const whole = await client.messages.create(story);
const stream = client.messages.stream(story);
const events = await all(stream, (event) => event.type);
const final = await stream.finalMessage();
const count = await client.messages.countTokens({ model: MODEL, messages: messages(STORY) });
const called = await client.messages.stream({ ...asks, tools: [weather] }).finalMessage();
const cities = [];
const tool = { ...weather, parse: (input) => input, run: ({ city }) => `rain ${cities.push(city)}` };
const turns = await all(client.beta.messages.toolRunner({ ...asks, tools: [tool], max_iterations: 2 }), (turn) => turn.role);
const format = { type: "json_schema", schema: PERSON };
const shaped = await client.messages.create({ ...story, messages: messages(EXTRACT), max_tokens: 60, output_config: { format } });
tell({
  models: await all(client.models.list(), (each) => each.id),
  chat: whole.content[0].text,
  usage: [count.input_tokens, whole.usage.output_tokens],
  stream: final.content[0].text,
  streamUsage: [final.usage.input_tokens + final.usage.cache_read_input_tokens, final.usage.output_tokens],
  events: events.filter((each, number) => each !== events[number - 1]),
  call: called.content.map((each) => [each.name, each.input]),
  ran: [cities.length > 0, turns.length],
  object: JSON.parse(shaped.content[0].text),
  refusal: await message(() => client.messages.create({ ...story, messages: messages(LONG) })),
});
