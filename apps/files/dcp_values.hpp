#pragma once

#include "core/checkpoint/manifest.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// The item in which `export --to dcp` keeps all but tensors: step, save, topology, common values, objects.
inline constexpr const char* kDcpValuesKey = "troupe_checkpoint";

core::Value dcp_values_of(const core::Manifest& manifest);
/// Whether this is what dcp_values_of() made; it is then moved to the manifest.
bool take_dcp_values(core::Value& value, core::Manifest& manifest);

}  // namespace troupe::apps
