#include "apps/files/file_writer.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
constexpr std::size_t kAlignment = 4096;

}  // namespace

void FileWriter::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

FileWriter::FileWriter(std::unique_ptr<actors::WritableFile> file) : file_(std::move(file)) {
  for (auto& buffer : buffers_) {
    buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBufferBytes)));
  }
}

core::Result<void> FileWriter::append(std::span<const std::byte> bytes) {
  if (!buffers_[0] || !buffers_[1])
    return core::fail(core::Errc::out_of_memory, "there is no memory for two buffers of {} bytes",
                      kBufferBytes);
  while (!bytes.empty()) {
    const auto count = std::min(bytes.size(), kBufferBytes - filled_);
    std::copy_n(bytes.data(), count, buffers_[filling_].get() + filled_);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == kBufferBytes) TRY(flush());
  }
  return {};
}

core::Result<void> FileWriter::finish() {
  TRY(flush());
  TRY(wait());
  TRY(file_->sync());
  return file_->close();
}

core::Result<void> FileWriter::flush() {
  TRY(wait());
  if (filled_ == 0) return {};
  const std::span<const std::byte> piece(buffers_[filling_].get(), std::exchange(filled_, 0));
  filling_ = 1 - filling_;
  writing_ = std::async(std::launch::async, [file = file_.get(), piece] { return file->append(piece); });
  return {};
}

core::Result<void> FileWriter::wait() {
  return writing_.valid() ? writing_.get() : core::Result<void>{};
}

}  // namespace troupe::apps
