// Optimizers against those of PyTorch, whose values tests/golden/optimizers/make_optimizers.py wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/kernels.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/place.hpp"
#include "tests/support/folder.hpp"

namespace troupe::gpu {
namespace {

using core::DType;
using nlohmann::json;

std::string text_of(const json& golden, const char* key) {
  return golden.at(key).get<std::string>();
}

json golden_file(const char* name) {
  std::ifstream file(tests_folder() / "golden" / "optimizers" / name);
  return json::parse(file);
}

std::vector<json> golden_cases(const std::vector<std::string>& optimizers) {
  std::vector<json> cases;
  for (const json& one : golden_file("optimizers.json")) {
    const auto found = std::find(optimizers.begin(), optimizers.end(), text_of(one, "optimizer"));
    if (found != optimizers.end()) cases.push_back(one);
  }
  return cases;
}

std::string name_of(const json& golden) {
  return text_of(golden, "optimizer") + " " + golden.at("options").dump() + " " + text_of(golden, "dtype");
}

/// Numbers that are written as the bits of their fp32 values; zeros where there are none.
std::vector<float> floats(const json& of, const char* key, std::size_t count) {
  std::vector<float> values(count);
  if (!of.contains(key)) return values;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::bit_cast<float>(of.at(key).at(i).get<std::uint32_t>());
  }
  return values;
}

/// How many fp32 values one is from the other; both of one sign.
std::uint32_t values_between(float one, float other) {
  const auto first = std::bit_cast<std::int32_t>(one);
  const auto second = std::bit_cast<std::int32_t>(other);
  return static_cast<std::uint32_t>(std::abs(first - second));
}

class GoldenOptimizer : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }

  /// An optimizer's tensors as PyTorch has them after step `after`, counted from 1; 0 is the beginning.
  struct Tensors {
    Tensors(Place& place, const json& golden, std::size_t after)
        : count(golden.at("initial").size()),
          before(after == 0 ? golden : golden.at("steps").at(after - 1)),
          next(golden.at("steps").at(after)),
          dtype(text_of(golden, "dtype") == "bf16" ? DType::bf16 : DType::f32),
          main(place, DType::f32, floats(before, after == 0 ? "initial" : "main", count)),
          first(place, DType::f32, floats(before, "first", count)),
          second(place, DType::f32, floats(before, "second", count)),
          parameter(place, dtype, count),
          gradient(place, dtype, floats(next, "gradient", count)),
          factor(golden.at("gradient_factor").get<float>()) {}

    ParameterStep step() const {
      return {.gradient = gradient.elements(),
              .gradient_factor = factor,
              .master = main.view(),
              .parameter = parameter.elements()};
    }
    /// What PyTorch has after the next step.
    std::vector<float> expected(const char* key) const { return floats(next, key, count); }

    std::size_t count;
    json before;
    json next;
    DType dtype;
    Vector main;
    Vector first;
    Vector second;
    Vector parameter;
    Vector gradient;
    float factor;
  };
};

TEST_P(GoldenOptimizer, SgdHasTheBitsOfPyTorch) {
  const auto cases = golden_cases({"sgd"});
  ASSERT_EQ(cases.size(), 12U);
  for (const json& golden : cases) {
    SCOPED_TRACE(name_of(golden));
    const json& given = golden.at("options");
    const SgdOptions options{.learning_rate = given.at("lr"),
                             .momentum = given.value("momentum", 0.0),
                             .weight_decay = given.value("weight_decay", 0.0),
                             .nesterov = given.value("nesterov", false)};
    for (std::size_t after = 0; after < golden.at("steps").size(); ++after) {
      const Tensors tensors(place(), golden, after);
      const BufferView momentum = options.momentum != 0 ? tensors.first.view() : BufferView{};
      run([&](auto... stream) { sgd_step(options, tensors.step(), momentum, stream...); });

      expect_same(tensors.main, tensors.expected("main"));
      expect_same(tensors.first, tensors.expected("first"));
      expect_same(tensors.parameter, tensors.expected("parameter"));
    }
  }
}

TEST_P(GoldenOptimizer, AdamHasPyTorchsBitsExceptSquareRoots) {
  const auto cases = golden_cases({"adam", "adamw"});
  ASSERT_EQ(cases.size(), 10U);
  for (const json& golden : cases) {
    SCOPED_TRACE(name_of(golden));
    const json& given = golden.at("options");
    const AdamOptions options{.learning_rate = given.at("lr"),
                              .beta1 = given.at("betas").at(0),
                              .beta2 = given.at("betas").at(1),
                              .epsilon = given.at("eps"),
                              .weight_decay = given.value("weight_decay", 0.0),
                              .decoupled_weight_decay = text_of(golden, "optimizer") == "adamw"};
    for (std::size_t after = 0; after < golden.at("steps").size(); ++after) {
      const Tensors tensors(place(), golden, after);
      run([&](auto... stream) {
        adam_step(options, static_cast<std::int64_t>(after) + 1, tensors.step(),
                  {tensors.first.view(), tensors.second.view()}, stream...);
      });

      expect_same(tensors.first, tensors.expected("first"));
      expect_same(tensors.second, tensors.expected("second"));
      // PyTorch's square roots are not always the nearest number, which moves one value in some hundreds.
      const auto main = tensors.main.values();
      const auto expected = tensors.expected("main");
      int moved = 0;
      for (std::size_t i = 0; i < main.size(); ++i) {
        EXPECT_LE(values_between(main[i], expected[i]), 1U) << i << ": " << main[i] << ", " << expected[i];
        if (main[i] != expected[i]) ++moved;
      }
      EXPECT_LE(moved, 1);
      expect_same(tensors.parameter, tensors.dtype == DType::f32 ? main : tensors.expected("parameter"));
    }
  }
}

TEST_P(GoldenOptimizer, LionHasTheBitsOfItsAuthors) {
  const auto cases = golden_cases({"lion"});
  ASSERT_EQ(cases.size(), 4U);
  for (const json& golden : cases) {
    SCOPED_TRACE(name_of(golden));
    const json& given = golden.at("options");
    const LionOptions options{.learning_rate = given.at("lr"),
                              .beta1 = given.at("betas").at(0),
                              .beta2 = given.at("betas").at(1),
                              .weight_decay = given.value("weight_decay", 0.0)};
    for (std::size_t after = 0; after < golden.at("steps").size(); ++after) {
      const Tensors tensors(place(), golden, after);
      run([&](auto... stream) { lion_step(options, tensors.step(), tensors.first.view(), stream...); });

      expect_same(tensors.main, tensors.expected("main"));
      expect_same(tensors.first, tensors.expected("first"));
      expect_same(tensors.parameter, tensors.expected("parameter"));
    }
  }
}

/// PyTorch multiplies bf16 matrices in the steps of Newton and Schulz, so values are compared up to a part of
/// what a step moves them by; the momentum has its bits.
TEST_P(GoldenOptimizer, MuonStepsAsPyTorchUpToNarrowProducts) {
  constexpr double kPart = 0.03;  // of the learning rate
  const json cases = golden_file("muon.json");
  ASSERT_EQ(cases.size(), 4U);
  for (const json& golden : cases) {
    SCOPED_TRACE(golden.at("options").dump());
    const json& given = golden.at("options");
    const MatrixShape shape{golden.at("rows"), golden.at("columns")};
    const double longer = static_cast<double>(std::max(shape.rows, shape.columns));
    const double original =
        std::sqrt(std::max(1.0, static_cast<double>(shape.rows) / static_cast<double>(shape.columns)));
    const MuonOptions options{.learning_rate = given.at("lr"),
                              .momentum = given.value("momentum", 0.95),
                              .weight_decay = given.value("weight_decay", 0.1),
                              .nesterov = given.value("nesterov", true),
                              .scale = given.contains("adjust_lr_fn") ? 0.2 * std::sqrt(longer) : original,
                              .steps = given.value("ns_steps", 5)};
    const Buffer scratch = place().allocate(muon_scratch_bytes(shape));
    for (std::size_t after = 0; after < golden.at("steps").size(); ++after) {
      const json& before = after == 0 ? golden : golden.at("steps").at(after - 1);
      const json& next = golden.at("steps").at(after);
      const Vector main(place(), DType::f32, floats(before, after == 0 ? "initial" : "main", shape.count()));
      const Vector momentum(place(), DType::f32, floats(before, "momentum", shape.count()));
      const Vector gradient(place(), DType::f32, floats(next, "gradient", shape.count()));
      const ParameterStep step{.gradient = gradient.elements(), .master = main.view(), .parameter = {}};
      run([&](auto... stream) {
        muon_step(options, shape, step, momentum.view(), scratch.view(), stream...);
      });

      expect_same(momentum, floats(next, "momentum", shape.count()));
      const auto found = main.values();
      const auto expected = floats(next, "main", shape.count());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], kPart * options.learning_rate * options.scale) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, GoldenOptimizer, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
