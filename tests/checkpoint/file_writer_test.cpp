#include "apps/files/file_writer.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/errors.hpp"

namespace troupe::apps {
namespace {

struct Written {
  std::vector<std::byte> bytes;
  int pieces = 0;
  bool is_durable = false;
  bool is_closed = false;
};

/// Keeps what it is given; append number `fails_at` fails.
class KeptFile final : public actors::WritableFile {
 public:
  explicit KeptFile(Written& into, int fails_at = 0) : into_(into), fails_at_(fails_at) {}

  core::Result<void> append(std::span<const std::byte> bytes) override {
    if (++into_.pieces == fails_at_) return core::fail(core::Errc::io, "the disk is full");
    into_.bytes.insert(into_.bytes.end(), bytes.begin(), bytes.end());
    return {};
  }
  core::Result<void> sync() override {
    into_.is_durable = true;
    return {};
  }
  core::Result<void> close() override {
    into_.is_closed = true;
    return {};
  }

 private:
  Written& into_;
  int fails_at_;
};

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  return bytes;
}

constexpr std::size_t kMuch = std::size_t{40} << 20;

TEST(FileWriter, KeepsTheOrderOfWhatItIsGiven) {
  const auto bytes = some_bytes(kMuch + 5);
  Written written;
  FileWriter writer(std::make_unique<KeptFile>(written));

  // Pieces of several sizes, some larger than its buffers.
  std::size_t at = 0;
  for (std::size_t size = 1; at < bytes.size(); size = size * 7 + 3) {
    const auto count = std::min(size, bytes.size() - at);
    ASSERT_TRUE(writer.append(std::span(bytes).subspan(at, count)));
    at += count;
  }
  ASSERT_TRUE(writer.finish());

  EXPECT_EQ(written.bytes, bytes);
  EXPECT_TRUE(written.is_durable);
  EXPECT_TRUE(written.is_closed);
}

TEST(FileWriter, SaysWhatFailedAtTheEndAtTheLatest) {
  const auto bytes = some_bytes(kMuch);
  for (const int fails_at : {1, 2, 5}) {
    Written written;
    FileWriter writer(std::make_unique<KeptFile>(written, fails_at));

    auto done = writer.append(bytes);
    if (done) done = writer.finish();

    ASSERT_FALSE(done) << fails_at;
    EXPECT_EQ(done.error().message, "the disk is full");
    EXPECT_EQ(written.pieces, fails_at) << "nothing is written behind a hole";
    EXPECT_FALSE(written.is_durable);
  }
}

TEST(FileWriter, ThatIsDroppedWaitsForItsPiece) {
  const auto bytes = some_bytes(kMuch);
  Written written;
  {
    FileWriter writer(std::make_unique<KeptFile>(written));
    ASSERT_TRUE(writer.append(bytes));
  }
  EXPECT_EQ(written.bytes.size() % (std::size_t{8} << 20), 0U);
  EXPECT_FALSE(written.is_durable);
}

}  // namespace
}  // namespace troupe::apps
