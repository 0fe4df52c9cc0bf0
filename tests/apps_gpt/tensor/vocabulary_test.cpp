#include "apps/gpt/model/vocabulary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/support/folder.hpp"

namespace troupe::apps::gpt {
namespace {

/// Rows of logits with what Python's decimal numbers say of them.
struct Golden {
  std::size_t vocabulary = 0;
  double loss = 0;
  std::vector<std::int32_t> targets;
  std::vector<double> logits, loss_gradient;  // (N, V)
};

Golden read_golden_rows() {
  std::ifstream file(tests_folder() / "golden/vocabulary/vocabulary.json");
  const auto json = nlohmann::json::parse(file);
  Golden golden{json.at("vocabulary"), json.at("loss"), {}, {}, {}};
  const auto append = [](std::vector<double>& to, const std::vector<double>& values) {
    to.insert(to.end(), values.begin(), values.end());
  };
  for (const auto& row : json.at("rows")) {
    golden.targets.push_back(row.at("target"));
    append(golden.logits, row.at("logits"));
    append(golden.loss_gradient, row.at("loss_gradient"));
  }
  return golden;
}

/// The columns of a member, of values (N, V).
template <class To, class T>
std::vector<To> columns_of(const TensorGroup<T>& group, const std::vector<double>& values,
                           std::size_t vocabulary) {
  const std::size_t part = vocabulary / group.size();
  std::vector<To> columns;
  for (std::size_t row = 0; row < values.size() / vocabulary; ++row) {
    for (std::size_t v = 0; v < part; ++v)
      columns.push_back(static_cast<To>(values[row * vocabulary + group.index() * part + v]));
  }
  return columns;
}

template <class T>
void expect_golden(std::size_t members, double absolute, double relative) {
  const Golden golden = read_golden_rows();
  const std::size_t V = golden.vocabulary, part = V / members;
  play_members<T>(members, [&](TensorGroup<T>& group) {
    auto logits = columns_of<T>(group, golden.logits, V);
    const double loss = cross_entropy_forward<T>(&group, golden.targets, part, logits.data()).value();
    cross_entropy_backward<T>(golden.targets, group.index(), part, logits.data());

    EXPECT_NEAR(loss, golden.loss, relative * golden.loss);
    const auto expected = columns_of<double>(group, golden.loss_gradient, V);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(static_cast<double>(logits[i]), expected[i], absolute + relative * std::abs(expected[i]));
  });
}

TEST(VocabularyParallel, CrossEntropyIsThatOfTheWholeVocabulary) {
  for (const std::size_t members : {1, 2, 4, 8}) {
    expect_golden<double>(members, 1e-15, 1e-13);
    expect_golden<float>(members, 4e-7, 2e-6);
  }
}

TEST(VocabularyParallel, EmbeddingPartsAddUpAndTakeTheirOwnGradients) {
  const std::vector<std::int32_t> tokens = {7, 0, 3, 4, 7};
  constexpr std::size_t kVocabulary = 8, kWidth = 3;
  std::vector<double> table(kVocabulary * kWidth), d_x(tokens.size() * kWidth);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = 1.0 + static_cast<double>(i);
  for (std::size_t i = 0; i < d_x.size(); ++i) d_x[i] = 100.0 + static_cast<double>(i);

  play_members<double>(4, [&](TensorGroup<double>& group) {
    const double* own = table.data() + group.index() * 2 * kWidth;
    std::vector<double> x(tokens.size() * kWidth, -1), d_table(2 * kWidth);
    vocabulary_embedding_forward(tokens, group.index(), 2, kWidth, own, x.data());
    ASSERT_TRUE(group.sum(x));
    vocabulary_embedding_backward(tokens, group.index(), 2, kWidth, d_x.data(), d_table.data());

    for (std::size_t n = 0; n < tokens.size(); ++n) {
      for (std::size_t c = 0; c < kWidth; ++c)
        EXPECT_EQ(x[n * kWidth + c], table[static_cast<std::size_t>(tokens[n]) * kWidth + c]);
    }
    // Token 7 came twice; tokens 2, 1, 5 and 6 never.
    const std::vector<double> expected[] = {{103, 104, 105, 0, 0, 0},
                                            {0, 0, 0, 106, 107, 108},
                                            {109, 110, 111, 0, 0, 0},
                                            {0, 0, 0, 100 + 112, 101 + 113, 102 + 114}};
    EXPECT_EQ(d_table, expected[group.index()]) << "member " << group.index();
  });
}

}  // namespace
}  // namespace troupe::apps::gpt
