#include "apps/troupe/checkpoint/file_writer.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 4096;

}  // namespace

void FileWriter::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

FileWriter::FileWriter(std::unique_ptr<actors::WritableFile> file)
    : file_(std::move(file)), buffer_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBufferBytes))) {
  CHECK(buffer_ != nullptr, "there is memory for a buffer of a file");
}

core::Result<void> FileWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = std::min(bytes.size(), kBufferBytes - filled_);
    std::copy_n(bytes.data(), count, buffer_.get() + filled_);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == kBufferBytes) TRY(flush());
  }
  return {};
}

core::Result<void> FileWriter::finish() {
  TRY(flush());
  TRY(file_->sync());
  return file_->close();
}

core::Result<void> FileWriter::flush() {
  const auto count = std::exchange(filled_, 0);
  return file_->append({buffer_.get(), count});
}

}  // namespace troupe::apps
