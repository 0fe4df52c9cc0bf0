#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/interop/pickle.hpp"
#include "core/interop/torch_archive.hpp"
#include "core/interop/torch_placements.hpp"
#include "core/result.hpp"

namespace troupe::core {

// State dicts that every rank of an FSDP job saves for itself with torch.save: plain tensors are complete,
// and of a DTensor there is that rank's part.

/// A rank's part of a tensor.
struct TorchPart {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;  ///< of the complete tensor
  bool is_dtensor = false;
  /// What this rank has of it, and how the boxes lie in `local`.
  bool is_placed = false;
  std::vector<PlacedBox> boxes;
  /// If that is not known: the axis along which the ranks' parts follow each other; none: this rank has all.
  std::optional<std::size_t> axis;
  TorchTensor local;
};

struct TorchOddity {
  std::string key;
  std::string reason;
};

struct TorchParts {
  std::vector<TorchPart> parts;  ///< in the order of the state dict
  std::vector<TorchOddity> left_out;
};

/// The tensors of a model's state_dict(), as this rank saved it. Skipped are values that are not tensors,
/// tensors whose dtype Troupe lacks, and DTensors that are partial sums or placed in a way that is not known.
/// Errc::corrupt for an object that is not a dict of such values, or whose numbers contradict each other.
Result<TorchParts> torch_model_parts(const TorchArchive& archive, std::int64_t rank);

/// The tensors of an optimizer's state_dict(), which numbers the parameters: those of number i are
/// "optimizer.state.<name of i>.<kind>". The numbers are positions in `model`, where its DTensors are counted
/// and a tensor that appears under two names counts once. This holds for an optimizer with one group of all
/// parameters; for any other, everything is skipped.
Result<TorchParts> torch_optimizer_parts(const TorchArchive& archive, const TorchParts& model,
                                         std::int64_t rank);

/// The dict of an optimizer's groups, or of its only one; empty when there is none.
std::optional<PickleNode> torch_parameter_groups(const TorchArchive& archive);

/// Some elements of a tensor, and their position.
struct TorchShard {
  Box box;
  std::uint32_t rank = 0;
  std::uint64_t offset = 0;  ///< of its first element in bytes, from the beginning of the rank's archive
  std::uint64_t bytes = 0;   ///< of all its elements
  Shape strides;             ///< as in TorchTensor; empty: the elements follow each other
  std::uint64_t stored_bytes = 0;

  friend bool operator==(const TorchShard&, const TorchShard&) = default;
};

struct MergedTensor {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;
  bool is_dtensor = false;
  std::vector<TorchShard> shards;  ///< cover the tensor exactly
  std::vector<TorchShard> copies;  ///< boxes of `shards` again, of additional replicas
};

/// Combines the parts of all ranks, in rank order. Errc::corrupt names a tensor that a rank lacks or
/// describes differently, or that the parts do not cover.
Result<std::vector<MergedTensor>> merge_torch_parts(std::span<const TorchParts> ranks);

}  // namespace troupe::core
