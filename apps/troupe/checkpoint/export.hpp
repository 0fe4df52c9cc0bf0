#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/files/model_companions.hpp"
#include "apps/files/source.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::apps {

struct Exported {
  std::uint64_t bytes = 0;  ///< of all tensors
  std::size_t tensors = 0;
  std::vector<std::string> files;
  double seconds = 0;
};

/// All of these write a new directory under a temporary name, which is renamed when it is durable, and refuse
/// one that is there. Shards stay as they are cut in the source.

enum class DcpNames : std::uint8_t {
  as_they_are,
  /// Those of {"model": ..., "optim": ...} with what get_state_dict() gives (optimizer_names.hpp), with the
  /// optimizer's steps.
  torch,
  /// For a source that is from PyTorch: every key that it had, nested and in its order, and its values.
  as_imported,
};

/// .metadata and *.distcp. Values go into the item kDcpValuesKey, unless they go where they were.
core::Result<Exported> export_dcp(const Source& source, const std::string& path,
                                  DcpNames names = DcpNames::as_they_are);

/// One *.safetensors per rank, with the parts of tensors that it holds, as PyTorch's HuggingFaceStorageReader
/// reads them. There is no place for values.
core::Result<Exported> export_sharded_safetensors(const Source& source, const std::string& path);

struct HuggingFaceOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;
  /// What tensors of floating dtypes become; nothing: they stay as they are.
  std::optional<core::DType> dtype;
  /// config.json, which gets the dtype of the tensors if they have one, and where companions come from.
  ModelFiles model;
};

/// Whole tensors in model-00001-of-0000n.safetensors, and model.safetensors.index.json. There is no place for
/// values.
core::Result<Exported> export_huggingface(const Source& source, const std::string& path,
                                          const HuggingFaceOptions& options);

}  // namespace troupe::apps
