// A thousand streams at once, asked by nib bench serve as its own process.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { run, serve } from './nib.js';

test('1,000 open streams end without a failed request', async () => {
  const server = await serve();
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'nib-bench-'));
  try {
    const bench = await run('bench', 'serve', '--backend', 'openai-chat', '--base-url', server.url, '--endpoint', '/v1/chat/completions',
      '--dataset-name', 'random', '--input-len', '16', '--output-len', '16', '--num-prompts', '1000', '--max-concurrency', '1000',
      '--ignore-eos', '--save-result', '--result-dir', folder);
    assert.equal(bench.code, 0, bench.stderr + bench.stdout);
    const result = JSON.parse(fs.readFileSync(path.join(folder, fs.readdirSync(folder)[0]), 'utf8'));
    assert.equal(result.completed, 1000);
    assert.equal(result.failed, 0);
    assert.equal(result.total_output_tokens, 16_000);
    assert.ok(result.max_concurrent_requests >= 1000, `only ${result.max_concurrent_requests} were open at once`);
    assert.equal(await server.metric('vllm:num_requests_running'), 0);
    console.log(bench.stdout);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
    assert.equal(await server.stop(), 0);
  }
});
