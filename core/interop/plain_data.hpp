#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/interop/pickle.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// How much memory values read from pickles may still take, both as they are kept and as text. A small pickle
/// can expand to a very large value when it shares lists or texts.
struct ValueBudget {
  std::uint64_t bytes = std::uint64_t{64} << 20;
};

/// Plain data in a pickle: None, bool, int, float, str, bytes, list, tuple, dict, OrderedDict, torch.Size.
/// Errc::unavailable names the place and the class of anything else, also of tensors, and integers beyond 64
/// bits; Errc::corrupt says what exceeds kMaxValueDepth levels or the budget. Values reduce the budget.
Result<Value> value_from_pickle(const PickleNode& node, ValueBudget& budget);

/// The value in an archive that torch.save made from one.
Result<Value> parse_torch_value(std::span<const std::byte> archive, ValueBudget& budget);
Result<Value> parse_torch_value(std::span<const std::byte> archive);

/// An archive that torch.load reads, also with weights_only. Errc::invalid_argument for text that is not
/// UTF-8 and for more than kMaxValueDepth levels.
Result<std::vector<std::byte>> encode_torch_value(const Value& value);

}  // namespace troupe::core
