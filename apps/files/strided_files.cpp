#include "apps/files/strided_files.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;

namespace {

Result<void> read_only() {
  return core::fail(Errc::internal, "the files of a checkpoint that is read are not changed");
}

/// Copies bytes of the row-major elements from `at` on; there are as many.
void gather(const StridedElements& from, std::uint64_t at, std::span<std::byte> into) {
  const auto axes = from.shape.size();
  core::Shape index(axes, 0);
  std::int64_t place = 0;  // of the element, in elements
  auto element = static_cast<std::int64_t>(at / from.width);
  for (std::size_t axis = axes; axis-- > 0;) {
    index[axis] = element % from.shape[axis];
    element /= from.shape[axis];
    place += index[axis] * from.strides[axis];
  }
  std::size_t within = at % from.width;
  while (!into.empty()) {
    const auto count = std::min(from.width - within, into.size());
    std::memcpy(into.data(), from.stored.data() + static_cast<std::size_t>(place) * from.width + within,
                count);
    into = into.subspan(count);
    within = 0;
    for (std::size_t axis = axes; axis-- > 0;) {
      place += from.strides[axis];
      if (++index[axis] < from.shape[axis]) break;
      place -= from.strides[axis] * from.shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

std::uint64_t StridedFiles::append(const std::string& name, StridedElements elements) {
  const auto begin = size_of(name);
  files_[name].push_back({begin, std::move(elements)});
  return begin;
}

std::uint64_t StridedFiles::size_of(const std::string& name) const {
  const auto found = files_.find(name);
  if (found == files_.end()) return 0;
  return found->second.back().begin + found->second.back().elements.bytes();
}

void StridedFiles::keep(std::vector<posix::MappedFile> files) {
  std::move(files.begin(), files.end(), std::back_inserter(kept_));
}

Result<std::unique_ptr<actors::WritableFile>> StridedFiles::create(std::string_view) {
  return tl::unexpected(read_only().error());
}

Result<std::vector<std::byte>> StridedFiles::read(std::string_view path, std::uint64_t offset,
                                                  std::size_t limit) {
  if (!files_.contains(path)) return real_->read(path, offset, limit);
  std::vector<std::byte> bytes(limit);
  bytes.resize(TRY(read_into(path, offset, bytes)));
  return bytes;
}

Result<std::size_t> StridedFiles::read_into(std::string_view path, std::uint64_t offset,
                                            std::span<std::byte> bytes) {
  const auto found = files_.find(path);
  if (found == files_.end()) return real_->read_into(path, offset, bytes);
  const auto& parts = found->second;
  auto part = std::upper_bound(parts.begin(), parts.end(), offset,
                               [](std::uint64_t at, const Part& each) { return at < each.begin; });
  if (part != parts.begin()) --part;
  std::size_t done = 0;
  for (; part != parts.end() && done < bytes.size(); ++part) {
    const auto at = offset + done - part->begin;
    if (at >= part->elements.bytes()) continue;
    const auto count = std::min<std::uint64_t>(part->elements.bytes() - at, bytes.size() - done);
    gather(part->elements, at, bytes.subspan(done, count));
    done += count;
  }
  return done;
}

Result<std::uint64_t> StridedFiles::size(std::string_view path) {
  if (files_.contains(path)) return size_of(std::string(path));
  return real_->size(path);
}

Result<void> StridedFiles::make_directory(std::string_view) {
  return read_only();
}

Result<std::vector<std::string>> StridedFiles::list(std::string_view path) {
  return real_->list(path);
}

Result<void> StridedFiles::rename(std::string_view, std::string_view) {
  return read_only();
}

Result<void> StridedFiles::remove(std::string_view) {
  return read_only();
}

Result<void> StridedFiles::sync_directory(std::string_view) {
  return read_only();
}

}  // namespace troupe::apps
