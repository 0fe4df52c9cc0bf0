#pragma once

#include <cstddef>
#include <cstdint>

#include "core/errors.hpp"
#include "core/mx_blocks.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {

/// Preconditions of the kernels, wherever they run.

inline void check_copy(ConstBufferView source, BufferView destination) {
  CHECK(source.bytes == destination.bytes, "a copy has as many bytes as its source");
}

template <class Ranges>
void check_ranges(const Ranges& ranges, std::size_t flat_bytes) {
  std::size_t bytes = 0;
  for (const auto& range : ranges) bytes += range.bytes;
  CHECK(bytes == flat_bytes, "the ranges together have the bytes of the flat buffer");
}

template <class Ranges>
void check_element_ranges(const Ranges& ranges, std::size_t flat_count) {
  std::size_t count = 0;
  for (const auto& range : ranges) {
    CHECK(range.dtype == ranges.front().dtype, "the ranges have one dtype");
    count += range.count();
  }
  CHECK(count == flat_count, "the ranges together have the elements of the flat ones");
}

inline void check_cast(ConstElements source, Elements destination) {
  CHECK(source.count() == destination.count(), "a cast has as many elements as its source");
}

inline void check_round_to_mx(core::DType element, ConstElements source, Elements destination) {
  CHECK(core::is_mx_element(element), "elements of blocks are f8_e4m3 or f8_e5m2");
  CHECK(source.count() == destination.count(), "values that are rounded stay as many");
}

/// For packed data, in parts.
inline void check_mx(core::DType element, std::size_t elements, std::size_t part, std::size_t bytes) {
  CHECK(core::is_mx_element(element), "elements of blocks are f8_e4m3 or f8_e5m2");
  CHECK(part % core::kMxBlockElements == 0 && (elements == 0 || (part > 0 && elements % part == 0)),
        "what is packed is parts of whole blocks");
  CHECK(bytes == static_cast<std::size_t>(core::mx_bytes(static_cast<std::int64_t>(elements))),
        "packed blocks have a byte for each element and one for each block");
}

inline void check_accumulate(ConstElements source, Elements destination) {
  CHECK(source.count() == destination.count(), "both sides of an accumulation have as many elements");
}

inline void check_tree_sum(const TreeSum& sum) {
  const auto slots = static_cast<int>(sum.slots.size());
  CHECK(slots > 0, "a tree sum has at least one slot");
  for (const auto& run : sum.slots.runs()) {
    CHECK(run.all.count() == run.count * sum.output.count(),
          "every slot of a tree sum has as many elements as the output");
  }
  for (const auto [destination, source] : sum.steps) {
    CHECK(destination >= 0 && destination < slots && source >= 0 && source < slots && destination != source,
          "a step of a tree sum joins two of its slots");
  }
}

inline void check_add_squares(BufferView sum) {
  CHECK(sum.bytes == sizeof(core::ExactSquareSum), "squares are added to one exact sum");
}

inline void check_add_square_sums(ConstBufferView parts, BufferView into) {
  CHECK(parts.bytes % sizeof(core::ExactSquareSum) == 0, "the parts are whole exact sums");
  check_add_squares(into);
}

inline void check_raise_to_largest(BufferView largest) {
  CHECK(largest.bytes == sizeof(std::uint32_t), "the largest magnitude is one word");
}

inline void check_parameter_step(const ParameterStep& parameter) {
  const std::size_t count = parameter.gradient.count();
  CHECK(parameter.master.bytes == count * sizeof(float),
        "an optimizer steps fp32 master values, one per gradient");
  CHECK(parameter.parameter.view.bytes == 0 || parameter.parameter.count() == count,
        "the parameter has one element per gradient");
  CHECK(parameter.cleared.bytes == 0 || parameter.cleared.data == parameter.gradient.view.data,
        "an optimizer clears its own gradient");
}

inline void check_sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) {
  check_parameter_step(parameter);
  CHECK(momentum.bytes == (options.momentum != 0 ? parameter.master.bytes : 0),
        "the momentum buffer is as large as the master values, or empty when there is no momentum");
}

inline void check_adam_step(std::int64_t step, const ParameterStep& parameter, AdamMoments moments) {
  check_parameter_step(parameter);
  CHECK(step >= 1, "optimizer steps of Adam count from 1");
  CHECK(moments.first.bytes == parameter.master.bytes && moments.second.bytes == parameter.master.bytes,
        "the moments are as large as the master values");
}

inline void check_lion_step(const ParameterStep& parameter, BufferView moment) {
  check_parameter_step(parameter);
  CHECK(moment.bytes == parameter.master.bytes, "the moment is as large as the master values");
}

inline void check_muon_step(MatrixShape shape, const ParameterStep& parameter, BufferView momentum,
                            BufferView scratch) {
  check_parameter_step(parameter);
  CHECK(parameter.gradient.count() == shape.count(), "Muon steps a whole matrix");
  CHECK(momentum.bytes == parameter.master.bytes, "the momentum buffer is as large as the master values");
  CHECK(scratch.bytes >= muon_scratch_bytes(shape), "Muon has the scratch memory it needs");
}

}  // namespace troupe::gpu
