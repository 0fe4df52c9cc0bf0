#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// Which file of a Hugging Face model holds which tensor.
struct HuggingFaceIndex {
  std::uint64_t total_bytes = 0;                  ///< of all tensors, called "total_size" in the file
  std::map<std::string, std::string> weight_map;  ///< tensor name to file name

  friend bool operator==(const HuggingFaceIndex&, const HuggingFaceIndex&) = default;
};

inline constexpr std::string_view kHuggingFaceIndexName = "model.safetensors.index.json";
/// For a model in a single file, which has no index.
inline constexpr std::string_view kHuggingFaceFileName = "model.safetensors";

/// Errc::corrupt for text that is not such JSON, and for file names that are paths or not *.safetensors.
/// Without "total_size", which some models lack, total_bytes is 0.
Result<HuggingFaceIndex> parse_huggingface_index(std::string_view text);
/// Errc::invalid_argument for names that parse_huggingface_index would refuse.
Result<std::string> encode_huggingface_index(const HuggingFaceIndex& index);

/// "model-00001-of-00003.safetensors"; `part` counts from 1.
std::string huggingface_file_name(std::size_t part, std::size_t parts);
/// "shard-00001-model-00001-of-00001.safetensors": one rank's part of a sharded save, as PyTorch names it.
/// `rank` counts from 0, the rank in the name from 1.
std::string huggingface_shard_file_name(int rank, std::size_t part, std::size_t parts);

/// The tensors of each file, in their order: a file is closed when the next tensor would make it larger than
/// `max_bytes`; a tensor larger than that gets a file of its own. transformers splits models this way.
std::vector<std::vector<std::size_t>> split_into_files(std::span<const std::uint64_t> tensor_bytes,
                                                       std::uint64_t max_bytes);

}  // namespace troupe::core
