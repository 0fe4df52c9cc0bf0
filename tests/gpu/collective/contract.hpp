#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/collective/operations.hpp"
#include "tests/gpu/collective/company.hpp"
#include "tests/gpu/collective/reference.hpp"

namespace troupe::gpu {

using core::DType;

inline ConstBufferView in(const Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}
inline BufferView out(Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

inline std::vector<Bytes> blank(std::size_t members, std::size_t bytes) {
  return std::vector<Bytes>(members, Bytes(bytes, std::byte{0x5c}));
}

inline std::size_t sum_of(const std::vector<std::size_t>& counts) {
  return offsets_of(counts).back();
}

/// What the files of the contract share: a company of members of one back-end, and ways to make them act.
class CollectiveContract : public ::testing::TestWithParam<std::tuple<BackendKind, int>> {
 protected:
  CollectiveContract() : stage(std::get<0>(GetParam()), std::get<1>(GetParam())), n(stage.size()) {}

  std::vector<Bytes> random_inputs(DType dtype, std::size_t count) {
    std::vector<Bytes> inputs;
    for (int i = 0; i < n; ++i) inputs.push_back(random_elements(dtype, count, random));
    return inputs;
  }

  /// Parts of every size, among them zero.
  std::vector<std::size_t> uneven_counts(std::size_t scale) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = i % 3 == 1 ? 0 : random() % scale + 1;
    return counts;
  }

  /// Posts make(member) for all, settles, and expects success.
  template <class Make>
  void perform(Make make) {
    std::vector<std::shared_ptr<OperationStatus>> statuses;
    for (int i = 0; i < n; ++i) statuses.push_back(stage.post(i, make(i)));
    stage.settle();
    for (const auto& status : statuses) ASSERT_EQ(outcome_of(*status), "ok") << message_of(*status);
  }

  /// Whether an all_to_all with the members' counts brings each part to where it belongs.
  bool exchanges(const std::vector<std::vector<std::size_t>>& input_counts) {
    std::vector<Bytes> inputs;
    std::vector<std::vector<std::size_t>> output_counts(input_counts.size());
    std::vector<Bytes> outputs;
    std::vector<Bytes> expected(input_counts.size());
    for (const auto& counts : input_counts)
      inputs.push_back(random_elements(DType::i32, sum_of(counts), random));
    for (std::size_t to = 0; to < expected.size(); ++to) {
      for (std::size_t from = 0; from < expected.size(); ++from) {
        output_counts[to].push_back(input_counts[from][to]);
        const auto offset = offsets_of(input_counts[from])[to];
        const Bytes part = slice(inputs[from], offset * 4, input_counts[from][to] * 4);
        expected[to].insert(expected[to].end(), part.begin(), part.end());
      }
      outputs.emplace_back(expected[to].size());
    }
    perform([&](int i) {
      const auto at = static_cast<std::size_t>(i);
      return Operation{.kind = OperationKind::all_to_all,
                       .dtype = DType::i32,
                       .input = in(inputs[at]),
                       .output = out(outputs[at]),
                       .input_counts = input_counts[at],
                       .output_counts = output_counts[at]};
    });
    return outputs == expected;
  }

  /// Whether `output` is the reduction of the inputs, as exactly as the back-end promises.
  bool is_reduction(DType dtype, ReduceOp reduce, const std::vector<Bytes>& inputs, const Bytes& output) {
    if (!stage.traits().has_reference_arithmetic) {
      return is_reduction_up_to_rounding(dtype, reduce, inputs, output);
    }
    return output == reference_reduce(dtype, reduce, inputs);
  }

  Stage stage;
  const int n;
  std::mt19937_64 random{20240229};
};

inline std::string name_of_case(const ::testing::TestParamInfo<std::tuple<BackendKind, int>>& info) {
  return ::testing::PrintToString(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
}

}  // namespace troupe::gpu
