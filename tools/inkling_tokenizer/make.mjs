// Builds the tokenizer of the Inkling models: the o200k ranks of the npm package tiktoken, and added_tokens.json.
//   npm ci && node make.mjs FOLDER    # writes FOLDER/tokenizer.json and FOLDER/tokenizer_config.json
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const readJson = (...path) => JSON.parse(readFileSync(join(here, ...path), "utf8"));

// A line of ranks is `! first_rank base64 base64 ...`. Bytes are kept as strings of Latin-1, one character a byte.
function readRanks(text) {
  const tokens = [];
  for (const line of text.split("\n").filter(Boolean)) {
    const [, first, ...encoded] = line.split(" ");
    encoded.forEach((token, i) => (tokens[Number(first) + i] = Buffer.from(token, "base64").toString("latin1")));
  }
  return tokens;
}

// Byte-level vocabularies spell each byte as a printable character: itself, or the next unused from U+0100 on.
function makeAlphabet() {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    return String.fromCodePoint(printable ? byte : next++);
  });
}

// The two tokens that a token was made of: what merging by rank leaves of its bytes just before its own merge.
function lastPair(token, rank, ranks) {
  const parts = [...token];
  while (parts.length > 2) {
    let best = rank, at = -1;
    for (let i = 0; i + 1 < parts.length; ++i) {
      const r = ranks.get(parts[i] + parts[i + 1]);
      if (r < best) [best, at] = [r, i];
    }
    if (at < 0) throw new Error(`token ${rank} is not made of two lower ones`);
    parts.splice(at, 2, parts[at] + parts[at + 1]);
  }
  return parts;
}

function makeModel(tokens) {
  const alphabet = makeAlphabet();
  const spell = (bytes) => Array.from(bytes, (c) => alphabet[c.charCodeAt(0)]).join("");
  const ranks = new Map(tokens.map((token, rank) => [token, rank]));
  const merges = [];
  tokens.forEach((token, rank) => {
    if (token.length > 1) merges.push(lastPair(token, rank, ranks).map(spell));
  });
  const vocab = Object.fromEntries(tokens.map((token, rank) => [spell(token), rank]));
  return { type: "BPE", byte_fallback: false, ignore_merges: true, vocab, merges };
}

function makeTokenizer(encoder, added) {
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false };
  const split = { type: "Split", pattern: { Regex: encoder.pat_str }, behavior: "Isolated", invert: false };
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: { type: "Sequence", pretokenizers: [split, byteLevel] },
    post_processor: null,
    decoder: byteLevel,
    model: makeModel(readRanks(encoder.bpe_ranks)),
  };
}

function makeConfig(added) {
  const decoder = Object.fromEntries(added.map(({ id, ...rest }) => [id, rest]));
  return { tokenizer_class: "PreTrainedTokenizerFast", model_max_length: 1048576, added_tokens_decoder: decoder };
}

const folder = process.argv[2];
if (!folder) {
  console.error("usage: node make.mjs FOLDER");
  process.exit(2);
}
const added = Object.entries(readJson("added_tokens.json")).map(([id, content]) => ({
  id: Number(id), content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
}));
const encoder = readJson("node_modules", "tiktoken", "encoders", "o200k_base.json");
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(makeTokenizer(encoder, added)));
writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify(makeConfig(added), null, 2));
