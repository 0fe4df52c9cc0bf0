#include "core/state/stacked_tensor.hpp"

#include <fmt/format.h>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

/// The source again, if the parts are in one memory as they were built.
Result<StateNode> unstack(const TensorLeaf& source, const StateNode& loaded, const StackingRule& rule) {
  const auto parts = TRY(stacked_parts(source.tensor, rule));
  const auto* items = loaded.as_list();
  if (items == nullptr || items->size() != parts.size()) {
    return fail(
        Errc::mismatch, "'{}' is stored in {} parts, found a {}", source.tensor.key, parts.size(),
        items == nullptr ? std::string(loaded.type_name()) : fmt::format("list of {}", items->size()));
  }
  LocalData next;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto* part = (*items)[i].as_tensor();
    if (part == nullptr || part->tensor.local_shape != parts[i].local_shape) {
      return fail(Errc::mismatch, "part {} of '{}' is a {}, expected a tensor of shape {}", i,
                  source.tensor.key, (*items)[i].type_name(), to_string(parts[i].local_shape));
    }
    if (i == 0) next = part->data;
    if (part->data != next) {
      return fail(Errc::mismatch,
                  "part {} of '{}' does not follow the one before it in memory; load all parts into the "
                  "memory of one tensor",
                  i, source.tensor.key);
    }
    if (!next.is_none()) next.begin_bytes += part->tensor.bytes();
  }
  return StateNode(TensorLeaf{source.tensor, items->front().as_tensor()->data});
}

}  // namespace

TensorFactory stacked_factory(TensorLeaf source, const StackingRule& rule) {
  TensorFactory factory{.source = std::move(source), .build = {}, .merge = {}};
  factory.build = [rule](const TensorLeaf& tensor) -> Result<StateNode> {
    StateNode::List leaves;
    LocalData data = tensor.data;
    auto parts = TRY(stacked_parts(tensor.tensor, rule));
    for (ShardedTensor& part : parts) {
      const std::int64_t bytes = part.bytes();
      leaves.push_back(TensorLeaf{std::move(part), data});
      if (!data.is_none()) data.begin_bytes += bytes;
    }
    return StateNode(std::move(leaves));
  };
  factory.merge = [rule](const TensorLeaf& tensor, const StateNode& loaded) {
    return unstack(tensor, loaded, rule);
  };
  return factory;
}

}  // namespace troupe::core
