// The real openai client against nib serve models/nano.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { post, serve, until } from './nib.js';

const KEY = 'key-of-this-test';
const QUESTION = [{ role: 'user', content: 'What is 47 + 85?' }];
// Asks for many tokens whatever the model wants to say.
const LONG = { messages: QUESTION, max_tokens: 2000, ignore_eos: true, temperature: 0 };

let server, client, model;
before(async () => {
  server = await serve({ args: ['--api-key', KEY] });
  client = new OpenAI({ apiKey: KEY, baseURL: `${server.url}/v1`, maxRetries: 0 });
  model = (await client.models.list()).data[0].id;
});
after(async () => assert.equal(await server?.stop(), 0));

const ask = (fields) => client.chat.completions.create({ model, messages: QUESTION, temperature: 0, max_tokens: 200, ...fields });

// What a client that puts the pieces together ends up with, one entry per choice.
async function fold(stream) {
  const choices = [];
  let usage = null;
  for await (const chunk of stream) {
    if (chunk.usage) usage = chunk.usage;
    for (const { index, delta, logprobs, finish_reason } of chunk.choices) {
      const choice = (choices[index] ??= { content: '', reasoning: '', logprobs: [], finish_reason: null });
      choice.content += delta.content ?? '';
      choice.reasoning += delta.reasoning ?? '';
      choice.logprobs.push(...(logprobs?.content ?? []));
      assert.equal(choice.finish_reason, null, 'nothing follows a finish_reason');
      choice.finish_reason = finish_reason ?? null;
    }
  }
  return { choices, usage };
}

const whole = ({ message, logprobs, finish_reason }) => ({
  content: message.content ?? '',
  reasoning: message.reasoning ?? '',
  logprobs: logprobs?.content ?? [],
  finish_reason,
});

test('a question gets its answer, a finish_reason and a usage that adds up', async () => {
  const reply = await ask();
  assert.match(reply.choices[0].message.content, /132/);
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.equal(reply.object, 'chat.completion');
  assert.match(reply.id, /^chatcmpl-/);
  const { prompt_tokens, completion_tokens, total_tokens } = reply.usage;
  assert.ok(prompt_tokens > 0 && completion_tokens > 0);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
});

test('a stream folds to the reply without stream, logprobs and usage included', async () => {
  const fields = { logprobs: true, top_logprobs: 3 };
  const reply = await ask(fields);
  const streamed = await fold(await ask({ ...fields, stream: true, stream_options: { include_usage: true } }));
  assert.deepEqual(streamed.choices, reply.choices.map(whole));
  assert.deepEqual(streamed.usage, reply.usage);
});

test('without include_usage no chunk carries a usage', async () => {
  assert.equal((await fold(await ask({ stream: true }))).usage, null);
});

test('greedy logprobs: the token is the first of its top_logprobs, which fall', async () => {
  const { content } = (await ask({ logprobs: true, top_logprobs: 5 })).choices[0].logprobs;
  assert.ok(content.length > 0);
  for (const entry of content) {
    assert.equal(entry.top_logprobs.length, 5);
    assert.equal(entry.top_logprobs[0].token, entry.token);
    assert.equal(entry.top_logprobs[0].logprob, entry.logprob);
    assert.ok(entry.logprob <= 0);
    const values = entry.top_logprobs.map((top) => top.logprob);
    assert.deepEqual(values, [...values].sort((a, b) => b - a));
  }
});

test('n=3 gives three choices, streamed or not, the same for the same seed', async () => {
  const fields = { n: 3, temperature: 5, seed: 7, max_tokens: 24 }; // hot: nano is sure of its sums
  const reply = await ask(fields);
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1, 2]);
  const streamed = await fold(await ask({ ...fields, stream: true }));
  assert.deepEqual(streamed.choices, reply.choices.map(whole));
  const texts = reply.choices.map((choice) => JSON.stringify(whole(choice)));
  assert.ok(new Set(texts).size > 1, 'choices differ');
});

test('max_tokens cuts with finish_reason length and is what usage counts', async () => {
  const reply = await ask({ max_tokens: 3, ignore_eos: true });
  assert.equal(reply.choices[0].finish_reason, 'length');
  assert.equal(reply.usage.completion_tokens, 3);
});

test('a stop string ends the text before itself and is named', async () => {
  const messages = [{ role: 'user', content: 'Repeat exactly: river stone window garden paper' }];
  const full = (await ask({ messages })).choices[0].message.content;
  assert.match(full, /stone window/);
  const stop = 'ne win'; // across two tokens
  for (const stream of [false, true]) {
    const reply = await ask({ messages, stop, stream });
    const choice = stream ? (await fold(reply)).choices[0] : whole(reply.choices[0]);
    assert.equal(choice.content, full.slice(0, full.indexOf(stop)));
    assert.equal(choice.finish_reason, 'stop');
    if (!stream) assert.equal(reply.choices[0].stop_reason, stop);
  }
});

test('an aborted stream leaves the engine at once', async () => {
  const stream = await ask({ ...LONG, stream: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 3) break; // the client aborts when its loop is left
  stream.controller.abort();
  await until(async () => (await server.metric('vllm:num_requests_running')) === 0, 'no running request');
});

test('an aborted call without stream leaves the engine too', async () => {
  const abort = new AbortController();
  const call = client.chat.completions.create({ model, ...LONG }, { signal: abort.signal });
  await until(async () => (await server.metric('vllm:num_requests_running')) === 1, 'one running request');
  abort.abort();
  await assert.rejects(call, OpenAI.APIUserAbortError);
  await until(async () => (await server.metric('vllm:num_requests_running')) === 0, 'no running request');
});

test('completions: text continues the prompt, a list of prompts gives a choice each', async () => {
  const reply = await client.completions.create({ model, prompt: ['one two three', 'a b c'], max_tokens: 4, temperature: 0 });
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1]);
  const alone = await client.completions.create({ model, prompt: 'a b c', max_tokens: 4, temperature: 0 });
  assert.equal(alone.choices[0].text, reply.choices[1].text);
  assert.equal(alone.object, 'text_completion');
});

test('completions: echo with logprobs scores the prompt', async () => {
  const prompt = 'one two three';
  const reply = await client.completions.create({ model, prompt, max_tokens: 1, temperature: 0, echo: true, logprobs: 1 });
  const { tokens, token_logprobs } = reply.choices[0].logprobs;
  assert.ok(reply.choices[0].text.startsWith(prompt));
  assert.equal(token_logprobs.length, tokens.length);
  assert.equal(token_logprobs[0], null);
  assert.ok(token_logprobs.slice(1).every((value) => value <= 0));
});

test('tokenize and detokenize are inverse', async () => {
  const auth = { Authorization: `Bearer ${KEY}` };
  const prompt = 'Zürich, naïve, 你好 and \u{1F600}';
  const { json } = await post(`${server.url}/tokenize`, { model, prompt }, auth);
  assert.equal(json.count, json.tokens.length);
  const back = await post(`${server.url}/detokenize`, { model, tokens: json.tokens }, auth);
  assert.equal(back.json.prompt, prompt);
});

// What the client throws for each wrong call.
const WRONG = [
  ['an unknown model', { model: 'no-such-model' }, OpenAI.NotFoundError, 404, 'model', /no-such-model/],
  ['no messages', { messages: [] }, OpenAI.BadRequestError, 400, null, /messages/],
  ['a temperature below 0', { temperature: -1 }, OpenAI.BadRequestError, 400, 'temperature', /temperature/],
  ['greedy with n=2', { n: 2 }, OpenAI.BadRequestError, 400, null, /n/],
  ['stream_options without stream', { stream_options: { include_usage: true } }, OpenAI.BadRequestError, 400, null, /stream_options/],
  ['an image', { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }] }] },
    OpenAI.BadRequestError, 400, null, /At most 0 image/],
  ['a JSON response_format', { response_format: { type: 'json_object' } }, OpenAI.InternalServerError, 501, null, /response_format/],
  ['more tokens than the context', { max_tokens: 100_000_000 }, OpenAI.BadRequestError, 400, null, /max_tokens|context length/],
];
for (const [name, fields, type, status, param, message] of WRONG) {
  test(`${name} is a ${status}`, async () => {
    await assert.rejects(ask(fields), (error) => {
      assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
      assert.equal(error.status, status);
      assert.match(error.message, message);
      if (param) assert.equal(error.param, param);
      return true;
    });
  });
}

test('a wrong or missing key is a 401, on every guarded path', async () => {
  const stranger = new OpenAI({ apiKey: 'wrong', baseURL: `${server.url}/v1`, maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(stranger.chat.completions.create({ model, messages: QUESTION }), OpenAI.AuthenticationError);
  for (const path of ['/v1/models', '/v1/chat/completions', '/tokenize', '/detokenize']) {
    const reply = await fetch(server.url + path, { method: path === '/v1/models' ? 'GET' : 'POST' });
    assert.equal(reply.status, 401, path);
    assert.deepEqual(await reply.json(), { error: 'Unauthorized' });
  }
  assert.equal((await fetch(`${server.url}/health`)).status, 200);
});
