// A streamed conversation of two turns with the official client; prints what it saw as JSON.
import OpenAI from "openai";

const [baseURL, apiKey, model, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, days: { type: "integer" } },
        required: ["city"],
      },
    },
  },
];
const weather = { Paris: "mild in Paris", Oslo: "cold in Oslo" };

async function turn(messages) {
  const seen = { reasoning: "", content: "", calls: [], finish: null, deltas: 0 };
  const stream = await client.chat.completions.create({ model, messages, tools, stream: true });
  for await (const chunk of stream) {
    for (const { delta, finish_reason } of chunk.choices) {
      seen.deltas += 1;
      seen.reasoning += delta.reasoning ?? "";
      seen.content += delta.content ?? "";
      for (const part of delta.tool_calls ?? []) {
        seen.calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" };
        seen.calls[part.index].arguments += part.function.arguments ?? "";
      }
      seen.finish = finish_reason ?? seen.finish;
    }
  }
  return seen;
}

const messages = [{ role: "user", content: question }];
const first = await turn(messages);
messages.push({
  role: "assistant",
  content: first.content,
  tool_calls: first.calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  })),
});
const calls = first.calls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) }));
first.calls.forEach((call, index) => {
  messages.push({ role: "tool", tool_call_id: call.id, content: weather[calls[index].arguments.city] });
});
const second = await turn(messages);

// The client's own accumulator must agree with the loop above.
const runner = client.chat.completions.stream({ model, messages: messages.slice(0, 1), tools });
const final = await runner.finalChatCompletion();
const folded = final.choices[0].message.tool_calls.map((call) => call.function.arguments);
if (folded.join() !== first.calls.map((call) => call.arguments).join()) {
  throw new Error("the accumulated calls differ");
}
console.log(JSON.stringify({ ...first, calls, answer: second.content }));
