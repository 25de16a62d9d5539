// Starting, refusing to start, and stopping.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { MODEL, ROOT, freePort, post, run, serve } from './nib.js';

const LONG = { messages: [{ role: 'user', content: 'Count from 1 to 20.' }], temperature: 0, max_tokens: 400, ignore_eos: true };

let scratch;
before(() => (scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'nib-e2e-'))));
after(() => fs.rmSync(scratch, { recursive: true, force: true }));

// One sentence on standard error that says what and where.
function assert_refused({ code, stderr }, want_code, pattern) {
  assert.equal(code, want_code, stderr);
  assert.match(stderr, pattern);
  assert.doesNotMatch(stderr, /terminate called|what\(\)|Segmentation|Aborted/);
}

test('SIGTERM: what runs is finished, new connections are refused, exit 0', async () => {
  const server = await serve();
  const undisturbed = (await post(`${server.url}/v1/chat/completions`, LONG)).json.choices;
  const running = fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ ...LONG, stream: true }),
  });
  const reader = (await running).body.getReader();
  let text = Buffer.from((await reader.read()).value).toString();
  server.signal('SIGTERM');
  for (let part; !(part = await reader.read()).done; ) text += Buffer.from(part.value).toString();
  const chunks = text.split('\n\n').filter((event) => event.startsWith('data: {')).map((event) => JSON.parse(event.slice(6)));
  const content = chunks.map((chunk) => (chunk.choices[0]?.delta.reasoning ?? '') + (chunk.choices[0]?.delta.content ?? '')).join('');
  assert.equal(content, (undisturbed[0].message.reasoning ?? '') + (undisturbed[0].message.content ?? ''));
  assert.ok(text.endsWith('data: [DONE]\n\n'));
  assert.equal(await server.exited, 0);
  const late = net.connect(server.port, '127.0.0.1');
  assert.equal((await once(late, 'error').catch((error) => [error]))[0].code, 'ECONNREFUSED');
});

test('a port in use is named, exit 1', async () => {
  const listener = net.createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const port = String(listener.address().port);
  assert_refused(await run('serve', MODEL, '--host', '127.0.0.1', '--port', port), 1, new RegExp(`${port}.*in use|in use.*${port}`, 'i'));
  assert_refused(await run('serve', '/no/such/folder', '--host', '127.0.0.1', '--port', port), 1, /no\/such\/folder/);
  listener.close();
});

// arguments, exit code, what the sentence must contain
const USAGE = [
  [[], 2, /command/],
  [['dance'], 2, /dance/],
  [['serve', MODEL, '--no-such-flag'], 2, /no-such-flag/],
  [['serve', MODEL, '--port', 'x'], 2, /port/],
  [['serve', MODEL, '--port', '70000'], 2, /port/],
  [['serve', MODEL, '--max-num-seqs', '0'], 2, /max-num-seqs/],
  [['serve', MODEL, '--middleware', 'x.py'], 2, /middleware/],
  [['serve', '/no/such/folder'], 1, /no\/such\/folder/],
  [['serve', path.join(MODEL, 'config.json')], 1, /config\.json: is no folder.*models\/nano if/],
];
for (const [args, code, pattern] of USAGE) {
  test(`nib ${args.map((arg) => path.basename(arg)).join(' ')} exits ${code}`, async () => assert_refused(await run(...args), code, pattern));
}

test('--version says what /version and CMakeLists.txt say', async () => {
  const [, version] = fs.readFileSync(path.join(ROOT, 'CMakeLists.txt'), 'utf8').match(/project\(nib VERSION (\S+)/);
  const { code, stdout } = await run('--version');
  assert.deepEqual([code, stdout], [0, `nib ${version}\n`]);
  const server = await serve();
  assert.equal((await (await fetch(`${server.url}/version`)).json()).version, version);
  assert.equal(await server.stop(), 0);
});

test('--help exits 0 and lists the commands', async () => {
  const { code, stdout } = await run('--help');
  assert.equal(code, 0);
  for (const command of ['serve', 'chat', 'bench', 'eval', 'plan', 'inspect', 'debug']) assert.match(stdout, new RegExp(`\\b${command}\\b`));
});

const edit_json = (file, change) => (folder) => {
  const json = JSON.parse(fs.readFileSync(path.join(folder, file), 'utf8'));
  change(json);
  fs.writeFileSync(path.join(folder, file), JSON.stringify(json));
};
const shard = (folder) => fs.readdirSync(folder).filter((file) => file.endsWith('.safetensors')).sort()[0];
const edit_header = (change) => (folder) => {
  const file = path.join(folder, shard(folder));
  const bytes = fs.readFileSync(file);
  const size = Number(bytes.readBigUInt64LE());
  let text = JSON.stringify(change(JSON.parse(bytes.subarray(8, 8 + size).toString())));
  assert.ok(text.length <= size, 'the header must not grow');
  fs.writeFileSync(file, Buffer.concat([bytes.subarray(0, 8), Buffer.from(text.padEnd(size)), bytes.subarray(8 + size)]));
};
const replace_shard = (make) => (folder) => {
  const file = path.join(folder, shard(folder));
  fs.rmSync(file);
  make(file);
};
const first_tensor = (header) => Object.keys(header).filter((name) => name !== '__metadata__').sort()[0];

// what is done to a copy of models/nano, what the refusal must name
const BROKEN = [
  ['a missing shard', (folder) => fs.rmSync(path.join(folder, shard(folder))), /safetensors/],
  ['a truncated shard', (folder) => fs.truncateSync(path.join(folder, shard(folder)), 100_000), /safetensors/],
  ['an empty shard', (folder) => fs.truncateSync(path.join(folder, shard(folder)), 0), /safetensors/],
  ['a shard with bytes behind its tensors', (folder) => fs.appendFileSync(path.join(folder, shard(folder)), 'x'), /safetensors: its tensors end at byte \d+, but the file is \d+/],
  ['a shard that is a pipe', replace_shard((file) => execFileSync('mkfifo', [file])), /safetensors.*pipe/],
  ['a shard that is a folder', replace_shard((file) => fs.mkdirSync(file)), /safetensors.*folder/],
  ['a header of 2^60 bytes', (folder) => {
    const fd = fs.openSync(path.join(folder, shard(folder)), 'r+');
    fs.writeSync(fd, Buffer.from([0, 0, 0, 0, 0, 0, 0, 0x10]), 0, 8, 0);
    fs.closeSync(fd);
  }, /header/],
  ['an index naming a missing file', edit_json('model.safetensors.index.json', (index) => {
    index.weight_map[Object.keys(index.weight_map)[0]] = 'no-such-file.safetensors';
  }), /no-such-file/],
  ['a wrong dtype', edit_header((header) => ((header[first_tensor(header)].dtype = 'I8'), header)), /I8|dtype|bytes/],
  ['an unknown architecture', edit_json('config.json', (config) => (config.architectures = ['NoSuchModel'])), /NoSuchModel/],
  ['a missing clip limit', edit_json('config.json', (config) => delete config.text_config.q_l2_clip), /q_l2_clip/],
  ['a constant that is not public', edit_json('config.json', (config) => {
    config.text_config.q_l2_clip = { value: 14, placeholder: true };
  }), /q_l2_clip.*placeholder|placeholder.*q_l2_clip/],
  ['a config that is no JSON', (folder) => fs.writeFileSync(path.join(folder, 'config.json'), '{'), /config\.json/],
  ['no config', (folder) => fs.rmSync(path.join(folder, 'config.json')), /config\.json/],
  ['no tokenizer', (folder) => fs.rmSync(path.join(folder, 'tokenizer.json')), /tokenizer/],
  ['a tokenizer without <|end_message|>', edit_json('tokenizer.json', (tokenizer) => {
    tokenizer.added_tokens = tokenizer.added_tokens.filter((token) => token.content !== '<|end_message|>');
  }), /end_message/],
];
for (const [name, damage, pattern] of BROKEN) {
  test(`${name} is refused with its name, exit 1`, async () => {
    const folder = path.join(scratch, name.replace(/\W+/g, '-'));
    fs.cpSync(MODEL, folder, { recursive: true });
    damage(folder);
    assert_refused(await run('serve', folder, '--host', '127.0.0.1', '--port', String(await freePort())), 1, pattern);
  });
}
