#pragma once

#include <string>

#include "apps/files/nested_state.hpp"
#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Adds what a folder with the file .metadata holds ("": the state's own directory). Values that are plain
/// data become common values, nested as the state was; all other objects are left out, by name, and so are
/// values beyond some memory in proportion to the files. `check` compares elements with their CRC-32.
core::Result<void> add_dcp(NestedState& state, const std::string& folder, bool check);

core::Result<Source> open_dcp(const std::string& directory, bool check, actors::Links links);

}  // namespace troupe::apps
