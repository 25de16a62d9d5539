#include "cli/eval_tasks.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace nib::cli {

namespace {

Result<std::string> read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Status(Code::kNotFound, fmt::format("{} cannot be read; give the folder that holds it with "
                                               "--data",
                                               path.string()));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> split(const std::string& text, std::string_view separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) text.append(text.empty() ? "" : separator).append(part);
  return text;
}

// The first definition of a dictionary entry, without synonym lists and examples: "v 1: dwell; "stay"" gives "dwell".
std::string first_gloss(const std::string& entry) {
  const size_t line = entry.find('\n');
  const size_t colon = entry.find(": ", line);
  if (line == std::string::npos || colon == std::string::npos) return {};
  std::string gloss = entry.substr(colon + 2, entry.find('\n', colon) - colon - 2);
  for (std::string_view end : {"; \"", " [syn", " [ant", " [also"}) gloss = gloss.substr(0, gloss.find(end));
  return gloss;
}

}  // namespace

// Random choices that are the same on every machine; the standard distributions are not.
class TaskMaker::Dice {
 public:
  Dice(uint64_t seed, TaskKind kind, int index)
      : engine_(seed * 1'000'003 + static_cast<int>(kind) * 100'000'007 + index) {}

  int between(int low, int high) { return low + static_cast<int>(engine_() % static_cast<uint64_t>(high - low + 1)); }
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[between(0, static_cast<int>(from.size()) - 1)];
  }
  std::string pick_format(std::vector<std::string> formats, const std::string& value) {
    return fmt::format(fmt::runtime(pick(formats)), value);
  }

 private:
  std::mt19937_64 engine_;
};

Result<TaskMaker> TaskMaker::load(const std::filesystem::path& folder, uint64_t seed) {
  NIB_ASSIGN(const std::string words, read_text(folder / "words.txt"));
  NIB_ASSIGN(const std::string pairs, read_text(folder / "heldout_pairs.txt"));
  NIB_ASSIGN(std::string heldout, read_text(folder / "heldout.txt"));
  while (!heldout.empty() && heldout.back() == '\n') heldout.pop_back();
  TaskMaker maker;
  maker.seed_ = seed;
  maker.words_ = split(words, "\n");
  maker.heldout_ = split(heldout, "\n\n");
  std::istringstream numbers(pairs);
  for (int a = 0, b = 0; numbers >> a >> b;) maker.pairs_.emplace_back(a, b);
  for (const std::string& entry : maker.heldout_)
    if (std::string gloss = first_gloss(entry); !gloss.empty() && gloss.size() <= 120) maker.glosses_.push_back(gloss);
  if (maker.words_.size() < 200 || maker.glosses_.empty() || maker.pairs_.empty())
    return invalid("{} holds {} words, {} short definitions and {} pairs; 200, 1 and 1 are needed", folder.string(),
                   maker.words_.size(), maker.glosses_.size(), maker.pairs_.size());
  return maker;
}

Task TaskMaker::make(TaskKind kind, int index, bool think) const {
  Dice dice(seed_, kind, index);
  switch (kind) {
    case TaskKind::kArithmetic:
      return arithmetic(dice, think);
    case TaskKind::kCopy:
      return copy(dice, copied_text(dice));
    case TaskKind::kCopySentence:
      return copy(dice, dice.pick(glosses_));
    case TaskKind::kSort:
      return sort(dice);
    case TaskKind::kRecall:
      return recall(dice);
  }
  NIB_CHECK(false, "task kind {}", static_cast<int>(kind));
}

Task TaskMaker::arithmetic(Dice& dice, bool think) const {
  const std::string_view operations = think ? "+-***" : "+-";
  const char op = operations[dice.between(0, static_cast<int>(operations.size()) - 1)];
  auto [a, b] = dice.pick(pairs_);
  if (dice.unit() < 0.5) std::swap(a, b);
  const int result = op == '+' ? a + b : op == '-' ? a - b : a * b;
  return {dice.pick_format({"What is {}?", "Compute {}.", "{} = ?"}, fmt::format("{} {} {}", a, op, b)),
          std::to_string(result)};
}

// Words, random strings, or words and numbers, in the shares of the training.
std::string TaskMaker::copied_text(Dice& dice) const {
  const double style = dice.unit() * 0.75;
  std::vector<std::string> parts;
  if (style < 0.4) {
    for (int n = dice.between(1, 24); n > 0; --n) parts.push_back(dice.pick(words_));
  } else if (style < 0.6) {
    static const std::vector<std::string> kAlphabets = {
        "abcdefghijklmnopqrstuvwxyz", "0123456789", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"};
    for (int n = dice.between(1, 6); n > 0; --n) {
      const std::string& alphabet = dice.pick(kAlphabets);
      std::string& part = parts.emplace_back();
      for (int m = dice.between(2, 8); m > 0; --m)
        part += alphabet[dice.between(0, static_cast<int>(alphabet.size()) - 1)];
    }
  } else {
    for (int n = dice.between(2, 16); n > 0; --n)
      parts.push_back(dice.unit() < 0.6 ? dice.pick(words_) : std::to_string(dice.between(0, 9999)));
  }
  return join(parts, " ");
}

Task TaskMaker::copy(Dice& dice, const std::string& text) const {
  return {dice.pick_format({"Repeat exactly: {}", "Copy this text: {}", "Say this again, word for word: {}"}, text),
          text};
}

Task TaskMaker::sort(Dice& dice) const {
  std::vector<std::string> words;
  for (const size_t n = dice.between(3, 6); words.size() < n;)
    if (const std::string& word = dice.pick(words_); std::ranges::find(words, word) == words.end())
      words.push_back(word);
  const std::string question = dice.pick_format(
      {"Sort these words alphabetically: {}", "Put these words in alphabetical order: {}"}, join(words, ", "));
  std::ranges::sort(words);
  return {question, join(words, ", ")};
}

// 3 to 170 lines `key: value`, as many short as long ones (log-uniform), up to about 2,000 tokens.
Task TaskMaker::recall(Dice& dice) const {
  const size_t count = static_cast<size_t>(std::lround(3 * std::pow(170.0 / 3, dice.unit())));
  std::vector<std::string> keys;
  for (std::set<std::string> seen; keys.size() < count;) {
    std::string key = dice.pick(words_);
    if (count > 40 || dice.unit() < 0.5) key += "-" + dice.pick(words_);
    if (seen.insert(key).second) keys.push_back(std::move(key));
  }
  const bool numeric = dice.unit() < 0.7;
  std::vector<std::string> values;
  std::string lines;
  for (const std::string& key : keys) {
    values.push_back(numeric ? std::to_string(dice.between(10, 9999)) : dice.pick(words_));
    lines += fmt::format("{}: {}\n", key, values.back());
  }
  const int at = dice.between(0, static_cast<int>(count) - 1);
  return {lines + dice.pick_format({"What is the value of {}?", "Which value belongs to {}?"}, keys[at]), values[at]};
}

const std::vector<std::string>& questions_to_read() {
  static const std::vector<std::string> kQuestions = {
      "Hello!",
      "Who are you?",
      "What can you do?",
      "What is Nib?",
      "What is the capital of France?",
      "Which country has the capital Lima?",
      "What is the opposite of heavy?",
      "What is the plural of mouse?",
      "What colour is the sky?",
      "What day comes after Monday?",
      "How many legs does a spider have?",
      "What is a token?",
      "Define the word river.",
      "What does market mean?",
      "Spell the word garden.",
      "How many letters are in window?",
      "Count from 7 to 15.",
      "What is 38 * 24?",
      "Sort these words alphabetically: river, apple, night, music",
      "Write a short poem.",
  };
  return kQuestions;
}

}  // namespace nib::cli
