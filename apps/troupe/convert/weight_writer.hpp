#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/world/storage.hpp"
#include "apps/troupe/convert/model_source.hpp"
#include "core/models/weight_plan.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// What becomes of a model's tensors.
struct WeightJob {
  ModelForm form = ModelForm::megatron;
  core::WeightPlan plan;  ///< outputs have files
  /// What tensors of floating dtypes become, but for the experts' biases; nothing: they stay as they are.
  std::optional<core::DType> dtype;
  /// Small files that are written last, by name.
  std::map<std::string, std::string> texts;
  core::Value common;         ///< of the manifest
  std::string manifest_name;  ///< of the file with all hashes
};

struct WeightsWritten {
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;
  std::size_t files = 0;
  std::size_t kept_files = 0;  ///< that an earlier, interrupted run had written
};

/// Writes the directory `name` of `storage`, in `name`.partial, which gets its name when all of it is
/// durable. After an interruption files that are whole, by their hashes, are kept. Memory for one block of
/// `kStreamBytes` is enough. Errc::already_exists when there is something called `name`, Errc::mismatch for
/// tensors of other dtypes that become one.
core::Result<WeightsWritten> write_weights(const ModelSource& source, const WeightJob& job,
                                           actors::Storage& storage, const std::string& name);

}  // namespace troupe::apps
