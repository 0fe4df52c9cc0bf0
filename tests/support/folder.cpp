#include "tests/support/folder.hpp"

namespace troupe {

std::filesystem::path tests_folder() {
  const std::filesystem::path built_from = TROUPE_TESTS_FOLDER;
  return exists(built_from) ? built_from : std::filesystem::current_path() / "tests";
}

}  // namespace troupe
