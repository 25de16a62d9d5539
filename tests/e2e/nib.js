// Starts build/cpu/nib for a test and stops it again.
//   const server = await serve();            // models/nano on a free port, ready
//   await fetch(`${server.url}/v1/models`);
//   await server.stop();                     // SIGTERM; resolves to the exit code
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
export const NIB = path.join(ROOT, 'build/cpu/nib');
export const MODEL = path.join(ROOT, 'models/nano');
const READY_MS = 30_000; // of patience, not of measurement

export async function freePort() {
  const listener = net.createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address();
  listener.close();
  await once(listener, 'close');
  return port;
}

// Runs nib to its end: { code, stdout, stderr }.
export async function run(...args) {
  const child = spawn(NIB, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'pipe'] });
  const out = { stdout: '', stderr: '' };
  child.stdout.on('data', (bytes) => (out.stdout += bytes));
  child.stderr.on('data', (bytes) => (out.stderr += bytes));
  const [code] = await once(child, 'close');
  return { code, ...out };
}

export async function serve({ model = MODEL, args = [] } = {}) {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const child = spawn(NIB, ['serve', model, '--host', '127.0.0.1', '--port', String(port), ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let log = '';
  child.stdout.on('data', (bytes) => (log += bytes));
  child.stderr.on('data', (bytes) => (log += bytes));
  const exited = once(child, 'exit').then(([code, signal]) => code ?? signal);
  const server = {
    port,
    url,
    pid: child.pid,
    exited,
    log: () => log,
    signal: (name) => child.kill(name),
    stop: () => (child.kill('SIGTERM'), exited),
    metric: (name) => metric(url, name),
  };
  await ready(server, child);
  return server;
}

async function ready(server, child) {
  for (const end = Date.now() + READY_MS; ; await sleep(20)) {
    if (child.exitCode !== null || Date.now() > end) {
      child.kill('SIGKILL');
      throw new Error(`nib serve did not come up:\n${server.log()}`);
    }
    const response = await fetch(`${server.url}/health`).catch(() => null);
    if (response?.status === 200) return;
  }
}

// The sum of a metric over its labels, from /metrics.
async function metric(url, name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const rows = text.split('\n').filter((row) => row.startsWith(`${name}{`) || row.startsWith(`${name} `));
  if (rows.length === 0) throw new Error(`no metric ${name}`);
  return rows.reduce((sum, row) => sum + Number(row.slice(row.lastIndexOf(' '))), 0);
}

// Waits until the condition holds; the last value seen is in the error.
export async function until(condition, what, patience_ms = 20_000) {
  let last;
  for (const end = Date.now() + patience_ms; Date.now() < end; await sleep(20)) {
    last = await condition();
    if (last === true) return;
  }
  throw new Error(`waited in vain for: ${what} (last: ${JSON.stringify(last)})`);
}

export async function post(url, body, headers = {}) {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...headers },
    body: typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, text, json: text.startsWith('{') ? JSON.parse(text) : null };
}
