#pragma once

#include <string>
#include <string_view>

#include "apps/troupe/checkpoint/source.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// The item in which `export --to dcp` keeps what is no tensor: step, save, topology, common values, objects.
inline constexpr const char* kDcpValuesKey = "troupe_checkpoint";

core::Value dcp_values_of(const core::Manifest& manifest);

/// A directory with the file .metadata. Values that are plain data become common values, nested as the state
/// was; all other objects are left out, by name, and so are values beyond some memory in proportion to the
/// files.
core::Result<Source> open_dcp(const std::string& directory, bool check, actors::Links links);

}  // namespace troupe::apps
