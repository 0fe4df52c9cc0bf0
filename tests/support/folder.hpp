#pragma once

#include <filesystem>

namespace troupe {

/// The folder tests/ of the source tree, wherever a test is started and however its files were named to the
/// compiler; on a machine without that tree, tests/ in the current folder.
std::filesystem::path tests_folder();

}  // namespace troupe
