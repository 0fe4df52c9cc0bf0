#include "tests/support/folder.hpp"

namespace troupe {

std::filesystem::path tests_folder() {
  return TROUPE_TESTS_FOLDER;
}

}  // namespace troupe
