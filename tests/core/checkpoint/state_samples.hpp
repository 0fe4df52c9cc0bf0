#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/state/state_dict.hpp"

namespace troupe::core {

inline TensorLeaf tensor(const std::string& key, Shape shape = {4}, LocalData data = {}) {
  return {ShardedTensor::from_rank_offsets(key, DType::f32, std::move(shape)).value(), data};
}

inline ObjectLeaf object(const std::string& key) {
  return {{.key = key}, Value(key)};
}

/// Stores its tensor as `parts` tensors "<key>_<i>" in a list.
inline TensorFactory split_factory(const std::string& key, int parts) {
  TensorFactory factory{.source = tensor(key), .build = {}, .merge = {}};
  factory.build = [parts](const TensorLeaf& source) -> Result<StateNode> {
    StateNode::List built;
    for (int i = 0; i < parts; ++i) built.push_back(tensor(source.tensor.key + "_" + std::to_string(i)));
    return StateNode(std::move(built));
  };
  factory.merge = [](const TensorLeaf& source, const StateNode& loaded) -> Result<StateNode> {
    if (loaded.as_list() == nullptr) return fail(Errc::mismatch, "expected a list");
    TensorLeaf merged = source;
    merged.data = {.buffer = 100 + std::ssize(*loaded.as_list())};
    return StateNode(merged);
  };
  return factory;
}

}  // namespace troupe::core
