// What the scripts beside it share: what is asked, and how what came back is told.

export const { BASE, KEY, MODEL } = process.env;
export const STORY = "Tell me a story about a duck named Maya.";
export const QUESTION = "Will it rain in Athens on Monday?";
export const EXTRACT = "Extract age, job as JSON.\nUma is 61 and works as a pilot.";
export const CITY = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Athens"] } },
  required: ["city"],
  additionalProperties: false,
};
export const PERSON = {
  type: "object",
  properties: { age: { type: "integer" }, job: { type: "string", enum: ["pilot", "baker"] } },
  required: ["age", "job"],
  additionalProperties: false,
};
export const LONG = "word ".repeat(9000);

export async function message(asks) {
  try {
    await asks();
  } catch (error) {
    return error.message;
  }
}

export async function all(parts, said) {
  const found = [];
  for await (const part of parts) found.push(said(part));
  return found;
}

export const tell = (said) => console.log(JSON.stringify(said));
