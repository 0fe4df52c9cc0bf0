#pragma once

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/world/storage.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

/// A storage that counts what is asked of it, files included, and fails from or at a chosen operation.
class FaultyStorage final : public Storage {
 public:
  enum class Fault : std::uint8_t {
    one_fails,   ///< the operation does nothing and says so
    one_lies,    ///< the operation does all and says that it failed
    all_follow,  ///< nothing is done from the operation on: the power is gone
  };
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  explicit FaultyStorage(Storage& storage) : storage_(storage) {}

  /// Operations are counted from 0, from now on.
  void fail_at(std::uint64_t operation, Fault fault) {
    operations_ = 0;
    at_ = operation;
    fault_ = fault;
  }
  std::uint64_t operations() const { return operations_; }

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override {
    auto made = act(fmt::format("create {}", path), [&] { return storage_.create(path); });
    if (!made) return made;
    return std::make_unique<File>(*this, std::string(path), std::move(*made));
  }
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override {
    return act(fmt::format("read {}", path), [&] { return storage_.read(path, offset, limit); });
  }
  core::Result<std::uint64_t> size(std::string_view path) override {
    return act(fmt::format("size {}", path), [&] { return storage_.size(path); });
  }
  core::Result<void> make_directory(std::string_view path) override {
    return act(fmt::format("make_directory {}", path), [&] { return storage_.make_directory(path); });
  }
  core::Result<std::vector<std::string>> list(std::string_view path) override {
    return act(fmt::format("list {}", path), [&] { return storage_.list(path); });
  }
  core::Result<void> rename(std::string_view from, std::string_view to) override {
    return act(fmt::format("rename {} {}", from, to), [&] { return storage_.rename(from, to); });
  }
  core::Result<void> remove(std::string_view path) override {
    return act(fmt::format("remove {}", path), [&] { return storage_.remove(path); });
  }
  core::Result<void> sync_directory(std::string_view path) override {
    return act(fmt::format("sync_directory {}", path), [&] { return storage_.sync_directory(path); });
  }

 private:
  class File final : public WritableFile {
   public:
    File(FaultyStorage& storage, std::string path, std::unique_ptr<WritableFile> file)
        : storage_(storage), path_(std::move(path)), file_(std::move(file)) {}

    core::Result<void> append(std::span<const std::byte> bytes) override {
      return storage_.act("append " + path_, [&] { return file_->append(bytes); });
    }
    core::Result<void> sync() override {
      return storage_.act("sync " + path_, [&] { return file_->sync(); });
    }
    core::Result<void> close() override {
      return storage_.act("close " + path_, [&] { return file_->close(); });
    }

   private:
    FaultyStorage& storage_;
    std::string path_;
    std::unique_ptr<WritableFile> file_;
  };

  template <class Action>
  auto act(const std::string& what, const Action& action) -> decltype(action()) {
    const auto number = operations_++;
    const bool fails = number == at_ || (fault_ == Fault::all_follow && number > at_);
    if (!fails) return action();
    if (fault_ == Fault::one_lies) core::disregard(action(), "the lie is told whatever happened");
    return core::fail(core::Errc::io, "no luck with operation {}: {}", number, what);
  }

  Storage& storage_;
  std::uint64_t operations_ = 0;
  std::uint64_t at_ = kNever;
  Fault fault_ = Fault::one_fails;
};

}  // namespace troupe::actors
