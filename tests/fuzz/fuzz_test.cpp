#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/fuzz/mutation.hpp"
#include "tests/fuzz/targets.hpp"
#include "tests/support/folder.hpp"

namespace troupe::fuzz {
namespace {

/// Executions per format, in the tests of every day; the libFuzzer programs go on for as long as they are
/// let.
constexpr int kExecutions = 100'000;
constexpr std::size_t kLargestMutant = 8192;

std::vector<std::string> corpus_of(std::string_view name) {
  std::vector<std::filesystem::path> paths;
  const auto folder = tests_folder() / "fuzz" / "corpus" / name;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    corpus.push_back(text.str());
  }
  return corpus;
}

void run(const Target& target, const std::string& input) {
  // A copy of its own size, so that AddressSanitizer sees a read beyond the end.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  EXPECT_EQ(target.run(bytes.data(), bytes.size()), 0);
}

class Fuzz : public testing::TestWithParam<Target> {};

TEST_P(Fuzz, TakesEveryInputOfTheCorpus) {
  const auto corpus = corpus_of(GetParam().name);

  EXPECT_FALSE(corpus.empty());
  for (const std::string& input : corpus) run(GetParam(), input);
}

/// `--gtest_random_seed=N` draws other mutants.
TEST_P(Fuzz, TakesMutantsOfTheCorpus) {
  const auto seed = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed));
  std::cout << "seed " << seed << ", " << kExecutions << " mutants" << std::endl;
  Mutator mutator(corpus_of(GetParam().name), seed, kLargestMutant);

  for (int i = 0; i < kExecutions; ++i) run(GetParam(), mutator.next());
}

INSTANTIATE_TEST_SUITE_P(Formats, Fuzz, testing::ValuesIn(kTargets), testing::PrintToStringParamName());

TEST(Mutator, DrawsTheSameMutantsForTheSameSeed) {
  Mutator first({"abcdef", "0123456789"}, 7, 100);
  Mutator second({"abcdef", "0123456789"}, 7, 100);
  Mutator other({"abcdef", "0123456789"}, 8, 100);
  int different = 0;

  for (int i = 0; i < 1000; ++i) {
    const std::string mutant = first.next();
    EXPECT_EQ(mutant, second.next());
    EXPECT_LE(mutant.size(), 100U);
    different += mutant != other.next() ? 1 : 0;
  }

  EXPECT_GT(different, 500);
}

TEST(Mutator, GoesOnFromAnEmptyCorpus) {
  Mutator mutator({""}, 1, 100);

  bool grew = false;
  for (int i = 0; i < 1000; ++i) grew = grew || !mutator.next().empty();

  EXPECT_TRUE(grew);
}

}  // namespace
}  // namespace troupe::fuzz
