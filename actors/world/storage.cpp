#include "actors/world/storage.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::actors {

core::Result<std::vector<std::string>> split_path(std::string_view path) {
  std::vector<std::string> parts;
  if (path.empty()) return parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    std::size_t end = std::min(path.find('/', begin), path.size());
    std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string_view::npos) {
      return core::fail(
          core::Errc::invalid_argument,
          "expected a path below the storage's directory such as \"step_10/shard_0\", found \"{}\"", path);
    }
    parts.emplace_back(part);
    begin = end + 1;
  }
  return parts;
}

core::Result<std::size_t> Storage::read_into(std::string_view path, std::uint64_t offset,
                                             std::span<std::byte> bytes) {
  const auto found = TRY(read(path, offset, bytes.size()));
  std::copy(found.begin(), found.end(), bytes.begin());
  return found.size();
}

}  // namespace troupe::actors
