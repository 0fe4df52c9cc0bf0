#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/interop/pickle.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// What values out of pickles may still take of memory, as they are kept and as text. A small pickle can mean
/// very much when it shares lists or texts.
struct ValueBudget {
  std::uint64_t bytes = std::uint64_t{64} << 20;
};

/// Plain data in a pickle: None, bool, int, float, str, bytes, list, tuple, dict, OrderedDict, torch.Size.
/// Errc::unavailable names the place and the class of anything else, a tensor too, and integers beyond 64
/// bits; Errc::corrupt says what exceeds kMaxValueDepth levels or the budget, from which values are taken.
Result<Value> value_from_pickle(const PickleNode& node, ValueBudget& budget);

/// The value in an archive that torch.save made of one.
Result<Value> parse_torch_value(std::span<const std::byte> archive, ValueBudget& budget);
Result<Value> parse_torch_value(std::span<const std::byte> archive);

/// An archive that torch.load reads, with weights_only too. Errc::invalid_argument for text that is not UTF-8
/// and more than kMaxValueDepth levels.
Result<std::vector<std::byte>> encode_torch_value(const Value& value);

}  // namespace troupe::core
