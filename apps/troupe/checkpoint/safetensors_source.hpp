#pragma once

#include <string>
#include <string_view>

#include "apps/troupe/checkpoint/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";

bool holds_safetensors(const std::string& directory);

/// The files that model.safetensors.index.json names; without an index all *.safetensors, whose tensors may
/// be parts of larger ones, as PyTorch's sharded saves are. Errc::corrupt when the files contradict each
/// other or the index.
core::Result<Source> open_safetensors(const std::string& directory, actors::Links links,
                                      actors::Reads reads = actors::Reads::through_cache);
/// The path itself may be a link.
core::Result<Source> open_safetensors_file(const std::string& path);

}  // namespace troupe::apps
