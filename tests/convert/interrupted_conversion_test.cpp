#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <span>

#include "actors/world/storage/posix.hpp"
#include "apps/troupe/convert/weights_command.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "tests/convert/convert_tool.hpp"
#include "tests/convert/small_model.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using core::Errc;
using core::Result;

/// Does not wait for the disk. Every call that changes something is counted; from the one with this number on
/// all of them fail, as after the end of a process. That one still writes half of what it should append.
class DyingStorage final : public actors::Storage {
 public:
  DyingStorage(actors::Storage& below, int calls) : below_(below), left_(calls) {}

  bool died() const { return left_ < 0; }

  Result<std::unique_ptr<actors::WritableFile>> create(std::string_view path) override {
    TRY(live());
    return std::make_unique<File>(*this, TRY(below_.create(path)));
  }
  Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                      std::size_t limit) override {
    return below_.read(path, offset, limit);
  }
  Result<std::uint64_t> size(std::string_view path) override { return below_.size(path); }
  Result<void> make_directory(std::string_view path) override {
    TRY(live());
    return below_.make_directory(path);
  }
  Result<std::vector<std::string>> list(std::string_view path) override { return below_.list(path); }
  Result<void> rename(std::string_view from, std::string_view to) override {
    TRY(live());
    return below_.rename(from, to);
  }
  Result<void> remove(std::string_view path) override {
    TRY(live());
    return below_.remove(path);
  }
  Result<void> sync_directory(std::string_view path) override {
    (void)path;
    return live();
  }

 private:
  class File final : public actors::WritableFile {
   public:
    File(DyingStorage& storage, std::unique_ptr<actors::WritableFile> below)
        : storage_(storage), below_(std::move(below)) {}
    Result<void> append(std::span<const std::byte> bytes) override {
      const auto live = storage_.live();
      if (!live && storage_.left_ == -1) TRY(below_->append(bytes.first(bytes.size() / 2)));
      TRY(storage_.live_already());
      return below_->append(bytes);
    }
    Result<void> sync() override { return storage_.live(); }
    Result<void> close() override { return below_->close(); }

   private:
    DyingStorage& storage_;
    std::unique_ptr<actors::WritableFile> below_;
  };

  Result<void> live_already() const {
    if (left_ >= 0) return {};
    return core::fail(Errc::aborted, "the process has ended");
  }
  Result<void> live() {
    if (left_ >= 0) left_ -= 1;
    return live_already();
  }

  actors::Storage& below_;
  int left_;
};

constexpr int kForever = 1 << 30;

std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = read_text(entry.path().string());
  return files;
}

/// What has the name of a finished file is one.
void expect_whole_files(const std::string& directory) {
  if (!fs::exists(directory)) return;
  for (const auto& [name, text] : files_in(directory)) {
    if (!name.ends_with(".safetensors")) continue;
    EXPECT_TRUE(core::parse_safetensors_header(std::as_bytes(std::span(text)), text.size()).has_value())
        << name;
  }
}

class Interrupted : public testing::TestWithParam<std::string> {
 protected:
  Interrupted() {
    const auto config = small_config("Qwen3-30B-A3B", 2);
    write_model(directory.path("in"), config, small_tensors(config));
    arguments.from_path = directory.path("in");
    arguments.to = GetParam();
    arguments.config.mesh = {.tp = 2, .ep = 2};
    arguments.max_shard_bytes = 1500;
  }

  ScratchFolder directory;
  WeightsArguments arguments;
  std::unique_ptr<actors::PosixStorage> storage = actors::PosixStorage::open((directory.path(""))).value();
};

TEST_P(Interrupted, FinishesWhenItIsStartedAgainAfterAnyCall) {
  ASSERT_TRUE(convert_weights(arguments, *storage, "straight").has_value());
  const auto expected = files_in(directory.path("straight"));
  for (const auto& [name, text] : expected)
    EXPECT_TRUE(name.ends_with(".safetensors") || name.ends_with(".json")) << name;

  bool died = true;
  for (int calls = 0; died && calls < 500; ++calls) {
    DyingStorage dying(*storage, calls);
    const auto first = convert_weights(arguments, dying, "out");
    died = dying.died();
    EXPECT_EQ(first.has_value(), !died);
    if (died && !fs::exists(directory.path("out"))) {
      expect_whole_files(directory.path("out.partial"));
      DyingStorage living(*storage, kForever);
      const auto again = convert_weights(arguments, living, "out");
      ASSERT_TRUE(again.has_value()) << calls << ": " << again.error().message;
    }
    EXPECT_EQ(files_in(directory.path("out")), expected) << calls;
    EXPECT_FALSE(fs::exists(directory.path("out.partial")));
    fs::remove_all(directory.path("out"));
  }

  EXPECT_FALSE(died) << "there are more calls than this test tries";
}

TEST_P(Interrupted, KeepsFilesThatAreWhole) {
  // The end of the process comes somewhere in the middle.
  DyingStorage dying(*storage, 30);
  ASSERT_FALSE(convert_weights(arguments, dying, "out").has_value());

  const auto again = convert_weights(arguments, *storage, "out");

  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_GT(again->kept_files, 0U);
  EXPECT_LT(again->kept_files, again->files);
}

TEST_P(Interrupted, WritesAFileAnewWhoseBytesChanged) {
  ASSERT_TRUE(convert_weights(arguments, *storage, "straight").has_value());
  DyingStorage dying(*storage, 30);
  ASSERT_FALSE(convert_weights(arguments, dying, "out").has_value());
  int altered = 0;
  for (const auto& [name, text] : files_in(directory.path("out.partial"))) {
    if (!name.ends_with(".safetensors")) continue;
    auto other = text;
    other.back() = static_cast<char>(other.back() ^ 1);
    write_text(directory.path("out.partial/" + name), other);
    ++altered;
  }
  ASSERT_GT(altered, 0);

  const auto again = convert_weights(arguments, *storage, "out");

  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(again->kept_files, 0U);
  EXPECT_EQ(files_in(directory.path("out")), files_in(directory.path("straight")));
}

TEST_P(Interrupted, DoesNotMixTwoConversions) {
  DyingStorage dying(*storage, 30);
  ASSERT_FALSE(convert_weights(arguments, dying, "out").has_value());
  arguments.has_dtype = true;
  arguments.config.dtype = "f32";
  ASSERT_TRUE(convert_weights(arguments, *storage, "straight").has_value());

  const auto again = convert_weights(arguments, *storage, "out");

  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(again->kept_files, 0U);
  EXPECT_EQ(files_in(directory.path("out")), files_in(directory.path("straight")));
}

/// Names, dtypes and shapes are the same, elements are not.
TEST_P(Interrupted, DoesNotMixTwoModels) {
  DyingStorage dying(*storage, 30);
  ASSERT_FALSE(convert_weights(arguments, dying, "out").has_value());
  const auto config = small_config("Qwen3-30B-A3B", 2);
  auto tensors = small_tensors(config);
  for (auto& [name, tensor] : tensors) tensor.bytes.front() ^= std::byte{1};
  write_model(directory.path("in"), config, tensors);
  ASSERT_TRUE(convert_weights(arguments, *storage, "straight").has_value());

  const auto again = convert_weights(arguments, *storage, "out");

  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(again->kept_files, 0U);
  EXPECT_EQ(files_in(directory.path("out")), files_in(directory.path("straight")));
}

INSTANTIATE_TEST_SUITE_P(Forms, Interrupted, testing::Values("megatron", "huggingface", "troupe"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace troupe::apps
