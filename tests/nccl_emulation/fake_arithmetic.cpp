// Reductions as a ring makes them: each chunk begins at another rank, and every hop rounds to the type.
#include "tests/nccl_emulation/fake_arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "core/dtype.hpp"
#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

/// How elements are stored and computed with.
template <class Stored, class Value>
struct Arithmetic {
  std::function<Value(Stored)> widen = [](Stored stored) { return static_cast<Value>(stored); };
  std::function<Stored(Value)> narrow = [](Value value) { return static_cast<Stored>(value); };
  std::function<Value(Value, Value)> combine;

  std::vector<std::byte> run(NcclReduction reduction, const std::vector<const std::byte*>& inputs,
                             std::size_t count) const {
    const std::size_t n = inputs.size();
    std::vector<std::byte> output(count * sizeof(Stored));
    const Value share = widen(narrow(static_cast<Value>(1) / static_cast<Value>(n)));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t first = (i * n / count + 1) % n;
      const auto load = [&](std::size_t hop) {
        Stored stored;
        std::memcpy(&stored, inputs[(first + hop) % n] + i * sizeof stored, sizeof stored);
        if (reduction != NcclReduction::average) return widen(stored);
        return widen(narrow(static_cast<Value>(widen(stored) * share)));
      };
      Value sum = load(0);
      for (std::size_t hop = 1; hop < n; ++hop) sum = widen(narrow(combine(sum, load(hop))));
      const Stored stored = narrow(sum);
      std::memcpy(output.data() + i * sizeof stored, &stored, sizeof stored);
    }
    return output;
  }
};

template <class Value>
std::function<Value(Value, Value)> combine_numbers(NcclReduction reduction) {
  if (reduction == NcclReduction::min) return [](Value a, Value b) { return std::min(a, b); };
  if (reduction == NcclReduction::max) return [](Value a, Value b) { return std::max(a, b); };
  return [](Value a, Value b) { return static_cast<Value>(a + b); };
}

/// fmin and fmax prefer the number to the NaN, as the device's do.
template <class Value>
std::function<Value(Value, Value)> combine_floats(NcclReduction reduction) {
  if (reduction == NcclReduction::min) return [](Value a, Value b) { return std::fmin(a, b); };
  if (reduction == NcclReduction::max) return [](Value a, Value b) { return std::fmax(a, b); };
  return [](Value a, Value b) { return a + b; };
}

template <class Stored>
std::vector<std::byte> reduce_integers(NcclReduction reduction, const std::vector<const std::byte*>& inputs,
                                       std::size_t count) {
  if (reduction == NcclReduction::sum) {  // unsigned: wrapping is defined there
    using Unsigned = std::make_unsigned_t<Stored>;
    return Arithmetic<Unsigned, Unsigned>{.combine = combine_numbers<Unsigned>(reduction)}.run(reduction,
                                                                                               inputs, count);
  }
  return Arithmetic<Stored, Stored>{.combine = combine_numbers<Stored>(reduction)}.run(reduction, inputs,
                                                                                       count);
}

}  // namespace

std::vector<std::byte> reduce_in_ring(NcclDataType type, NcclReduction reduction,
                                      const std::vector<const std::byte*>& inputs, std::size_t count) {
  switch (type) {
    case NcclDataType::i8:
      return reduce_integers<std::int8_t>(reduction, inputs, count);
    case NcclDataType::u8:
      return reduce_integers<std::uint8_t>(reduction, inputs, count);
    case NcclDataType::i32:
      return reduce_integers<std::int32_t>(reduction, inputs, count);
    case NcclDataType::u32:
      return reduce_integers<std::uint32_t>(reduction, inputs, count);
    case NcclDataType::i64:
      return reduce_integers<std::int64_t>(reduction, inputs, count);
    case NcclDataType::u64:
      return reduce_integers<std::uint64_t>(reduction, inputs, count);
    case NcclDataType::f16:
      return Arithmetic<std::uint16_t, float>{core::f16_to_float, core::float_to_f16,
                                              combine_floats<float>(reduction)}
          .run(reduction, inputs, count);
    case NcclDataType::bf16:
      return Arithmetic<std::uint16_t, float>{core::bf16_to_float, core::float_to_bf16,
                                              combine_floats<float>(reduction)}
          .run(reduction, inputs, count);
    case NcclDataType::f32:
      return Arithmetic<float, float>{.combine = combine_floats<float>(reduction)}.run(reduction, inputs,
                                                                                       count);
    case NcclDataType::f64:
      return Arithmetic<double, double>{.combine = combine_floats<double>(reduction)}.run(reduction, inputs,
                                                                                          count);
  }
  CHECK(false, "a known type");
}

std::size_t size_of(NcclDataType type) {
  switch (type) {
    case NcclDataType::i8:
    case NcclDataType::u8:
      return 1;
    case NcclDataType::f16:
    case NcclDataType::bf16:
      return 2;
    case NcclDataType::i32:
    case NcclDataType::u32:
    case NcclDataType::f32:
      return 4;
    case NcclDataType::i64:
    case NcclDataType::u64:
    case NcclDataType::f64:
      return 8;
  }
  CHECK(false, "a known type");
}

}  // namespace troupe::gpu
