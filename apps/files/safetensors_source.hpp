#pragma once

#include <set>
#include <string>
#include <string_view>

#include "apps/files/source.hpp"
#include "core/interop/huggingface.hpp"
#include "core/result.hpp"

namespace troupe::apps {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";

bool holds_safetensors(const std::string& directory);

/// model.safetensors if there is one, else the files that model.safetensors.index.json names, as transformers
/// chooses; without either all *.safetensors, whose tensors may be parts of larger ones, as PyTorch's sharded
/// saves are. Errc::corrupt when the files contradict each other or the index.
core::Result<Source> open_safetensors(const std::string& directory, actors::Links links,
                                      actors::Reads reads = actors::Reads::through_cache);
/// All tensors of these files of the directory. Errc::corrupt for a tensor that is in two of them.
core::Result<Source> open_safetensors_files(const std::string& directory, const std::set<std::string>& files,
                                            actors::Links links, actors::Reads reads);
/// The index of that name in the directory. Errc::corrupt also for a pointer of Git LFS in its place.
core::Result<core::HuggingFaceIndex> read_index(actors::Storage& storage, const std::string& name);
/// The path itself may be a link.
core::Result<Source> open_safetensors_file(const std::string& path);

}  // namespace troupe::apps
