// The same conversation through the AI SDK, which runs the tools itself; prints what it saw as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, apiKey, model, question] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "derender", baseURL, apiKey, includeUsage: true });
const weather = { Paris: "mild in Paris", Oslo: "cold in Oslo" };
const seen = { reasoning: "", content: "", answer: "", calls: [], finish: null, deltas: 0 };
let step = 0;

const result = streamText({
  model: provider(model),
  prompt: question,
  maxRetries: 0,
  stopWhen: stepCountIs(2),
  onError: ({ error }) => {
    throw error;
  },
  tools: {
    get_weather: tool({
      inputSchema: z.object({ city: z.string(), days: z.number().int().optional() }),
      execute: async ({ city }) => weather[city],
    }),
  },
});

for await (const part of result.fullStream) {
  switch (part.type) {
    case "error":
      throw part.error;
    case "reasoning-delta":
      seen.deltas += 1;
      if (step === 0) seen.reasoning += part.text;
      break;
    case "text-delta":
      seen.deltas += 1;
      if (step === 0) seen.content += part.text;
      else seen.answer += part.text;
      break;
    case "tool-call":
      seen.calls.push({ name: part.toolName, arguments: part.input });
      break;
    case "finish-step":
      if (step === 0) seen.finish = part.finishReason;
      step += 1;
      break;
  }
}
console.log(JSON.stringify(seen));
