#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.hpp"
#include "core/values/key_path.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// A tensor and its place in the nested state of PyTorch that it is from.
struct TorchPlace {
  std::string key;     ///< what it is called now
  core::KeyPath path;  ///< what it was called is this, joined by dots
  /// Where it is a part of the tensor there: that one's shape, and where the part begins in it. It has one
  /// axis less, the first.
  core::Shape whole{};
  core::Shape offset{};
  /// The dtype in PyTorch that Troupe lacks (core::TorchDType), or kCarriedValue; empty: it is as it was.
  std::string carried{};
};

/// A tensor of the bytes of a value in a file of torch.distributed.checkpoint, which are not read.
inline constexpr const char* kCarriedValue = "value";

/// What an import must remember so that an export gives every key back: a checkpoint of Troupe has neither
/// nesting nor an order.
struct TorchState {
  std::vector<TorchPlace> tensors;   ///< in the order of the files
  std::vector<core::KeyPath> whole;  ///< values that are maps, and were one value
  std::vector<std::string> added;    ///< tensors that the files do not have
};

/// An imported checkpoint has it in this entry of its common values, beside those values, "trainer".
inline constexpr const char* kTorchStateKey = "torch";
inline constexpr const char* kTrainerKey = "trainer";

core::Value value_of(const TorchState& state);
/// Nothing: the checkpoint is not one that was imported from PyTorch.
std::optional<TorchState> torch_state_of(const core::Value& common);

/// "model.layers.0.weight", as torch.distributed.checkpoint joins it.
std::string dotted(const core::KeyPath& path);

/// A value and the path to it.
struct TorchValue {
  core::KeyPath path;
  core::Value value;
};
/// The values of nested maps, as PyTorch takes a nested state apart: what is not a map, empty maps, and maps
/// that are `whole`.
std::vector<TorchValue> flattened(const core::Value& value, const std::vector<core::KeyPath>& whole = {});

}  // namespace troupe::apps
