import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ai-sdk-ollama";
import { BASE, CITY, EXTRACT, KEY, LONG, MODEL, PERSON, QUESTION, STORY, all, message, tell } from "./said.mjs";

const headers = { Authorization: `Bearer ${KEY}` };
const compatible = createOpenAICompatible({ name: "x", baseURL: `${BASE}/v1`, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true });
const providers = {
  compatible,
  anthropic: createAnthropic({ baseURL: `${BASE}/v1`, apiKey: KEY }),
  ollama: createOllama({ baseURL: BASE, headers }),
};
const model = providers[process.env.PROVIDER](MODEL);
const asks = { model, temperature: 0, maxRetries: 0 };
const story = { ...asks, prompt: STORY, maxOutputTokens: 8 };
const weather = tool({ description: "The weather", inputSchema: jsonSchema(CITY), execute: async ({ city }) => `rain in ${city}` });
const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "auto" });

globalThis.AI_SDK_LOG_WARNINGS = false;
const whole = await generateText(story);
const streamed = streamText(story);
const stream = (await all(streamed.textStream, (text) => text)).join("");
const used = await streamed.usage;
const stopWhen = stepCountIs(2);
const called = await generateText({ ...asks, prompt: QUESTION, maxOutputTokens: 60, tools: { weather }, prepareStep, stopWhen });
const shaped = await generateText({ ...asks, prompt: EXTRACT, maxOutputTokens: 60, output: Output.object({ schema: jsonSchema(PERSON) }) });
const vectors = () => embedMany({ model: compatible.embeddingModel(MODEL), values: ["a", "b"] });
tell({
  chat: whole.text,
  usage: [whole.usage.inputTokens, whole.usage.outputTokens],
  stream,
  streamUsage: [used.inputTokens, used.outputTokens],
  call: called.steps[0].toolCalls.map((each) => [each.toolName, each.input]),
  results: called.steps[0].toolResults.map((each) => each.output),
  steps: called.steps.length,
  object: shaped.output,
  vectors: (await vectors()).embeddings.map((each) => each.length),
  refusal: await message(() => generateText({ ...asks, prompt: LONG })),
});
