// The questions of `nib eval`: generated instances that nano's training never shows, and a fixed list to read.
//   Result<TaskMaker> maker = TaskMaker::load("models/nano/eval", seed);
//   Task t = maker->make(TaskKind::kRecall, index, /*think=*/true);   // the same index gives the same task
//   t.question, t.answer
// The wordings and distributions are those of tools/train_nano/README.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nib::cli {

enum class TaskKind { kArithmetic, kCopy, kCopySentence, kSort, kRecall };

struct Task {
  std::string question, answer;
};

class TaskMaker {
 public:
  // folder holds words.txt (one a line), heldout.txt (dictionary entries separated by empty lines) and
  // heldout_pairs.txt (operands "a b" that training keeps out, in either order and for every operation).
  static Result<TaskMaker> load(const std::filesystem::path& folder, uint64_t seed);

  // think false: arithmetic leaves multiplication out, which nano works out in its thinking only.
  Task make(TaskKind kind, int index, bool think) const;
  const std::vector<std::string>& heldout() const { return heldout_; }

 private:
  class Dice;
  Task arithmetic(Dice& dice, bool think) const;
  Task copy(Dice& dice, const std::string& text) const;
  Task sort(Dice& dice) const;
  Task recall(Dice& dice) const;
  std::string copied_text(Dice& dice) const;

  uint64_t seed_ = 0;
  std::vector<std::string> words_, heldout_, glosses_;
  std::vector<std::pair<int, int>> pairs_;
};

// Questions whose answers are printed in full, for a person to read.
const std::vector<std::string>& questions_to_read();

}  // namespace nib::cli
