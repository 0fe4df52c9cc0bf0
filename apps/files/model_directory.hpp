#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// A directory of Hugging Face, read as the one model that transformers would read.
struct ModelDirectory {
  Source source;                   ///< its tensors are sorted by name
  std::string config;              ///< config.json, with the keys replaced
  std::vector<std::string> notes;  ///< sentences about what else lies there, and is not read
};

/// The file that "transformers_weights" of config.json names, else model.safetensors, else those of
/// model.safetensors.index.json, with all tensors that they hold; without an index, the parts of one model if
/// they are complete. `keys` replace those of config.json. Errc::not_found says what lies there instead of a
/// model; Errc::corrupt names a file that is missing, cut, contradicts another, or is a pointer of Git LFS.
core::Result<ModelDirectory> open_model_directory(const std::string& directory,
                                                  const std::map<std::string, std::string>& keys,
                                                  actors::Reads reads = actors::Reads::through_cache);

/// Whether two tensors have the same shape and, compared in f32, the same elements.
core::Result<bool> are_equal(const Source& source, const core::ManifestTensor& one,
                             const core::ManifestTensor& other);

/// For a model whose configuration ties its head to the embedding: Errc::mismatch if there is a `head` with
/// other elements than the `embedding`, since versions of transformers differ in which they use.
core::Result<void> check_tied_head(const Source& source, const std::string& head,
                                   const std::string& embedding);

}  // namespace troupe::apps
