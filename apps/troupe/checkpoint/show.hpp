#pragma once

#include <string>

#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// What `troupe checkpoint show` prints.
std::string show_text(const Source& source);
core::Result<std::string> show_json(const Source& source);

/// One tensor with all its shards; the text has a map of who holds what. Errc::not_found names some that are
/// there.
core::Result<std::string> show_tensor_text(const Source& source, const std::string& key);
core::Result<std::string> show_tensor_json(const Source& source, const std::string& key);

/// Fits into 80 columns. If a tensor has more than two axes, the two that are cut most are drawn, at the
/// first index of the others. Every shard has a letter (after 62 of them they come again); a character shows
/// who holds the element in the middle of what it stands for.
std::string tensor_map(const core::ManifestTensor& tensor);

/// The letter of a shard in the map.
char shard_letter(std::size_t shard) noexcept;

}  // namespace troupe::apps
