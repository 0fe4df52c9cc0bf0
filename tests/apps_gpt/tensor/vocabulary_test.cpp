#include "apps/gpt/model/vocabulary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/random.hpp"
#include "tests/apps_gpt/tensor/members.hpp"
#include "tests/support/folder.hpp"

namespace troupe::apps::gpt {
namespace {

/// Rows of logits with what Python's decimal numbers say of them.
struct Golden {
  std::size_t vocabulary = 0;
  double loss = 0;
  std::vector<std::int32_t> targets;
  std::vector<double> entropy;                                  // (N)
  std::vector<double> logits, loss_gradient, entropy_gradient;  // (N, V)
};

Golden read_golden_rows() {
  std::ifstream file(tests_folder() / "golden/vocabulary/vocabulary.json");
  const auto json = nlohmann::json::parse(file);
  Golden golden{json.at("vocabulary"), json.at("loss"), {}, {}, {}, {}, {}};
  const auto append = [](std::vector<double>& to, const std::vector<double>& values) {
    to.insert(to.end(), values.begin(), values.end());
  };
  for (const auto& row : json.at("rows")) {
    golden.targets.push_back(row.at("target"));
    golden.entropy.push_back(row.at("entropy"));
    append(golden.logits, row.at("logits"));
    append(golden.loss_gradient, row.at("loss_gradient"));
    append(golden.entropy_gradient, row.at("entropy_gradient"));
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
void expect_near(const std::vector<T>& found, const std::vector<double>& expected, double absolute,
                 double relative, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(found[i]), expected[i], absolute + relative * std::abs(expected[i]))
        << what << " " << i;
  }
}

template <class T>
void expect_golden(std::size_t members, double absolute, double relative) {
  const Golden golden = read_golden_rows();
  const std::size_t V = golden.vocabulary, N = golden.targets.size(), part = V / members;
  play_members<T>(members, [&](TensorGroup<T>& group) {
    auto logits = columns_of<T>(group, golden.logits, V);
    const auto given = logits;
    std::vector<T> probabilities(N * part), mean(N), entropy(N), gradient(N * part);
    const std::vector<T> ones(N, T{1});

    const VocabularyEntropy<T> of{N, part, logits.data(), probabilities.data(), mean.data()};
    ASSERT_TRUE(vocabulary_entropy_forward(group, of, entropy.data()));
    vocabulary_entropy_backward(of, ones.data(), gradient.data());
    EXPECT_EQ(logits, given) << "entropy only reads the logits";
    const double loss =
        vocabulary_cross_entropy_forward<T>(&group, golden.targets, part, logits.data()).value();
    vocabulary_cross_entropy_backward<T>(golden.targets, group.index(), part, logits.data());

    const auto exact = [&](const std::vector<double>& values) {
      return columns_of<double>(group, values, V);
    };
    expect_near(entropy, golden.entropy, absolute, relative, "entropy");
    expect_near(gradient, exact(golden.entropy_gradient), absolute, relative, "entropy's gradient");
    EXPECT_NEAR(loss, golden.loss, relative * golden.loss);
    expect_near(logits, exact(golden.loss_gradient), absolute, relative, "loss's gradient");
  });
}

TEST(VocabularyParallel, CrossEntropyAndEntropyAreThoseOfTheWholeVocabulary) {
  for (const std::size_t members : {1, 2, 4, 8}) {
    expect_golden<double>(members, 1e-15, 1e-13);
    expect_golden<float>(members, 4e-7, 2e-6);
  }
}

/// Sums over a real vocabulary stay within the tolerances that PyTorch has for fp32.
// Covers ranks-6.
TEST(VocabularyParallel, EntropyOfManyTokensIsWithinToleranceOfDoublePrecision) {
  constexpr std::size_t kRows = 8, kVocabulary = 155'136, kMembers = 2, kPart = kVocabulary / kMembers;
  const core::CounterRandom random(5, "logits");
  std::vector<double> logits(kRows * kVocabulary);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<double>(random.normal(i));

  play_members<float>(kMembers, [&](TensorGroup<float>& group) {
    const auto own = columns_of<float>(group, logits, kVocabulary);
    std::vector<float> probabilities(own.size()), mean(kRows), entropy(kRows), gradient(own.size());
    const VocabularyEntropy<float> of{kRows, kPart, own.data(), probabilities.data(), mean.data()};
    const std::vector<float> ones(kRows, 1);

    ASSERT_TRUE(vocabulary_entropy_forward(group, of, entropy.data()));
    vocabulary_entropy_backward(of, ones.data(), gradient.data());

    double error = 0, size = 0;  // of the gradient, squared
    for (std::size_t row = 0; row < kRows; ++row) {
      const double* x = logits.data() + row * kVocabulary;
      double total = 0, weighted = 0;
      for (std::size_t v = 0; v < kVocabulary; ++v) {
        total += std::exp(x[v]);
        weighted += std::exp(x[v]) * x[v];
      }
      EXPECT_NEAR(entropy[row], std::log(total) - weighted / total, 1e-5 + 1.3e-6 * std::log(total));
      for (std::size_t v = 0; v < kPart; ++v) {
        const double value = x[group.index() * kPart + v];
        const double expected = -std::exp(value) / total * (value - weighted / total);
        error += std::pow(gradient[row * kPart + v] - expected, 2);
        size += expected * expected;
      }
    }
    EXPECT_LE(std::sqrt(error / size), 1e-5);
  });
}

TEST(VocabularyParallel, EmbeddingPartsAddUpToTheRowsAndTakeTheirOwnGradients) {
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
