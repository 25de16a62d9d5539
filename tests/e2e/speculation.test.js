// Speculation through the API: the same answers with and without, the facts it reports, what is refused at start.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { MODEL, post, run, serve } from './nib.js';

const DSPARK = { method: 'dspark', num_speculative_tokens: 7, draft_sample_method: 'probabilistic' };
const CONFIGS = {
  dspark: DSPARK,
  'dspark with scheduled verification': { ...DSPARK, enable_adaptive_verification: true },
  'dspark with three greedy drafts and no copies': { method: 'dspark', num_speculative_tokens: 3, copy_drafts: false },
  ngram: { method: 'ngram', num_speculative_tokens: 15 },
};
const TEXT = 'the silver river runs under the old stone bridge near the quiet village';
const REQUESTS = {
  greedy: { temperature: 0 },
  'seeded, two choices': { temperature: 1, seed: 11, n: 2 },
  'penalties and logprobs': { temperature: 0, presence_penalty: 0.5, repetition_penalty: 1.1, logprobs: true, top_logprobs: 3 },
  'a stop string': { temperature: 0, stop: ['stone'] },
  'few tokens': { temperature: 0.7, seed: 5, max_tokens: 17 },
};
const body = (options) => ({ messages: [{ role: 'user', content: `Copy this text: ${TEXT}` }], max_tokens: 120, ...options });
const flag = (config) => ['--speculative-config', JSON.stringify(config)];

async function answers(server) {
  const asked = Object.values(REQUESTS).map((options) => post(`${server.url}/v1/chat/completions`, body(options)));
  return (await Promise.all(asked)).map(({ status, text, json }) => {
    assert.equal(status, 200, text);
    return { choices: json.choices, completion_tokens: json.usage.completion_tokens };
  });
}

let plain, scratch;
before(async () => {
  const server = await serve();
  plain = await answers(server);
  await server.stop();
  scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'nib-e2e-'));
});
after(() => fs.rmSync(scratch, { recursive: true, force: true }));

for (const [name, config] of Object.entries(CONFIGS)) {
  test(`${name}: greedy and seeded answers are those of a server without`, async () => {
    const server = await serve({ args: flag(config) });
    assert.deepEqual(await answers(server), plain);
    assert.equal(await server.stop(), 0);
  });
}

test('a stream folds to the same answer', async () => {
  const server = await serve({ args: flag(DSPARK) });
  const { text } = await post(`${server.url}/v1/chat/completions`, { ...body(REQUESTS.greedy), stream: true });
  const chunks = text.split('\n\n').filter((event) => event.startsWith('data: {')).map((event) => JSON.parse(event.slice(6)));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), plain[0].choices[0].message.content);
  assert.equal(await server.stop(), 0);
});

test('usage and metrics count drafts, and agree', async () => {
  const server = await serve({ args: flag(DSPARK) });
  const { json } = await post(`${server.url}/v1/chat/completions`, body(REQUESTS.greedy));
  const details = json.usage.completion_tokens_details;
  assert.ok(details.accepted_prediction_tokens > 10, JSON.stringify(details));
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  const value = (name) => Number(metrics.match(new RegExp(`^vllm:${name}_total\\{[^}]*\\} (\\S+)$`, 'm'))[1]);
  assert.equal(value('spec_decode_num_accepted_tokens'), details.accepted_prediction_tokens);
  assert.equal(value('spec_decode_num_draft_tokens'), details.accepted_prediction_tokens + details.rejected_prediction_tokens);
  assert.ok(value('spec_decode_num_drafts') < json.usage.completion_tokens / 2);
  assert.equal(await server.stop(), 0);
});

// A copy of the model with other files beside its shards.
function model_with(change) {
  const folder = fs.mkdtempSync(path.join(scratch, 'model-'));
  for (const file of fs.readdirSync(MODEL))
    if (fs.statSync(path.join(MODEL, file)).isFile()) fs.copyFileSync(path.join(MODEL, file), path.join(folder, file));
  change(folder);
  return folder;
}
const edit_config = (change) => (folder) => {
  const file = path.join(folder, 'dspark_config.json');
  const config = JSON.parse(fs.readFileSync(file, 'utf8'));
  change(config);
  fs.writeFileSync(file, JSON.stringify(config));
};
const truncate = (folder) => fs.truncateSync(path.join(folder, 'mtp.safetensors'), 3_000_000);

// what is wrong, the config, how the model is changed, what the sentence must contain
const REFUSED = [
  ['more drafts than the block', { ...DSPARK, num_speculative_tokens: 8 }, null, /num_speculative_tokens.*from 1 to 7.*got 8/],
  ['a method that is not here', { method: 'eagle3' }, null, /eagle3/],
  ['an unknown key', { ...DSPARK, num_spec_tokens: 7 }, null, /num_spec_tokens.*num_speculative_tokens/],
  ['a folder without a drafter', { ...DSPARK, model: '/no/such/drafter' }, null, /no\/such\/drafter/],
  ['a truncated drafter', DSPARK, truncate, /mtp\.safetensors/],
  ['a drafter of another width', DSPARK, edit_config((c) => (c.hidden_size = 192)), /192|224/],
  ['a drafter with another rank', DSPARK, edit_config((c) => (c.markov_rank = 32)), /markov/],
  ['a tap behind the last layer', DSPARK, edit_config((c) => (c.target_layer_ids = [2, 5, 8, 11, 13])), /13/],
  ['a drafter with a layer less', DSPARK, edit_config((c) => (c.num_hidden_layers = 1)), /layers\.1/],
];
for (const [name, config, change, pattern] of REFUSED) {
  test(`refused at start: ${name}`, async () => {
    const { code, stderr } = await run('serve', change ? model_with(change) : MODEL, '--host', '127.0.0.1', ...flag(config));
    assert.ok(code === 1 || code === 2, `exit code ${code}`);
    assert.match(stderr, pattern);
    assert.doesNotMatch(stderr, /terminate called|what\(\)|Segmentation|Aborted/);
  });
}
