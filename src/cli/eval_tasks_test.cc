#include "cli/eval_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace nib::cli {
namespace {

// 300 words, three pairs and three entries, of which one is too long to copy.
std::filesystem::path make_folder() {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "eval_tasks";
  std::filesystem::create_directories(folder);
  std::ofstream words(folder / "words.txt");
  for (int i = 0; i < 300; ++i)
    words << "word" << static_cast<char>('a' + i / 26) << static_cast<char>('a' + i % 26) << "\n";
  std::ofstream(folder / "heldout_pairs.txt") << "14 37\n21 96\n50 51\n";
  std::ofstream(folder / "heldout.txt") << "abide\nv 1: dwell; \"stay with me\" [syn: bide]\n2: put up\n\n"
                                        << "lamp\nn 1: a light [syn: light]\n\n"
                                        << "long\nn 1: " << std::string(200, 'x') << "\n";
  return folder;
}

TaskMaker make(uint64_t seed = 1) {
  Result<TaskMaker> maker = TaskMaker::load(make_folder(), seed);
  NIB_CHECK(maker.ok(), "{}", maker.status().message());
  return std::move(*maker);
}

TEST(EvalTasks, AnIndexAndASeedNameOneInstance) {
  const TaskMaker maker = make(1), twin = make(1), other = make(2);
  for (TaskKind kind : {TaskKind::kArithmetic, TaskKind::kCopy, TaskKind::kSort, TaskKind::kRecall}) {
    std::set<std::string> questions;
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(maker.make(kind, i, true).question, twin.make(kind, i, true).question);
      questions.insert(maker.make(kind, i, true).question);
    }
    EXPECT_GT(questions.size(), kind == TaskKind::kArithmetic ? 20u : 40u);  // of 54 different sums here
    EXPECT_NE(maker.make(kind, 0, true).question, other.make(kind, 0, true).question);
  }
}

TEST(EvalTasks, ArithmeticIsRightAndNeverTrained) {
  const TaskMaker maker = make();
  const std::set<std::pair<int, int>> kPairs = {{14, 37}, {21, 96}, {50, 51}};
  bool multiplied = false;
  for (int i = 0; i < 500; ++i) {
    for (bool think : {false, true}) {
      const Task task = maker.make(TaskKind::kArithmetic, i, think);
      int a = 0, b = 0;
      char op = 0;
      ASSERT_EQ(std::sscanf(task.question.c_str() + task.question.find_first_of("0123456789"), "%d %c %d", &a, &op, &b),
                3)
          << task.question;
      EXPECT_TRUE(kPairs.contains({std::min(a, b), std::max(a, b)})) << task.question;
      EXPECT_EQ(task.answer, std::to_string(op == '+' ? a + b : op == '-' ? a - b : a * b)) << task.question;
      EXPECT_FALSE(op == '*' && !think) << task.question;
      multiplied |= op == '*';
    }
  }
  EXPECT_TRUE(multiplied);
}

TEST(EvalTasks, CopyEndsWithTheTextToCopyAndSkipsLongDefinitions) {
  const TaskMaker maker = make();
  std::set<std::string> sentences;
  for (int i = 0; i < 300; ++i) {
    const Task task = maker.make(TaskKind::kCopy, i, true), sentence = maker.make(TaskKind::kCopySentence, i, true);
    EXPECT_TRUE(task.question.ends_with(": " + task.answer)) << task.question;
    EXPECT_TRUE(sentence.question.ends_with(": " + sentence.answer)) << sentence.question;
    sentences.insert(sentence.answer);
  }
  EXPECT_EQ(sentences, (std::set<std::string>{"dwell", "a light"}));
}

TEST(EvalTasks, SortAsksForDistinctWordsInOrder) {
  const TaskMaker maker = make();
  for (int i = 0; i < 200; ++i) {
    const Task task = maker.make(TaskKind::kSort, i, true);
    std::vector<std::string> words;
    std::istringstream in(task.answer);
    for (std::string word; in >> word;) words.push_back(word.substr(0, word.find(',')));
    EXPECT_GE(words.size(), 3u);
    EXPECT_LE(words.size(), 6u);
    EXPECT_TRUE(std::ranges::is_sorted(words));
    EXPECT_EQ(std::set(words.begin(), words.end()).size(), words.size());
  }
}

TEST(EvalTasks, RecallAsksForAValueThatStandsInOneLine) {
  const TaskMaker maker = make();
  size_t shortest = 1000, longest = 0;
  for (int i = 0; i < 200; ++i) {
    const Task task = maker.make(TaskKind::kRecall, i, true);
    const size_t lines = std::ranges::count(task.question, '\n');
    const std::string asked = task.question.substr(task.question.rfind('\n') + 1);
    const size_t key = asked.rfind(' ') + 1;
    const std::string line = asked.substr(key, asked.size() - 1 - key) + ": " + task.answer + "\n";
    EXPECT_NE(("\n" + task.question).find("\n" + line), std::string::npos) << asked << " " << line;
    shortest = std::min(shortest, lines);
    longest = std::max(longest, lines);
  }
  EXPECT_LE(shortest, 5u);
  EXPECT_GE(longest, 120u);
}

TEST(EvalTasks, AFolderWithoutTheListsIsNamed) {
  const Result<TaskMaker> maker = TaskMaker::load("/no/such/folder", 1);
  ASSERT_FALSE(maker.ok());
  EXPECT_NE(maker.status().message().find("/no/such/folder/words.txt"), std::string::npos);
}

}  // namespace
}  // namespace nib::cli
