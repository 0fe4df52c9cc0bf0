#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "actors/world/storage.hpp"
#include "actors/world/storage/holds.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// A directory with a temporary name, which other processes leave alone while `hold` lives.
struct HeldDirectory {
  std::string name;
  actors::Hold hold;
};
/// "NAME.tmp-" and 16 digits.
core::Result<HeldDirectory> make_temporary(actors::Storage& storage, const std::string& name);
/// Removes what processes that are gone left under names that begin like this (actors::clear_abandoned()),
/// and says so on stderr.
core::Result<void> say_cleared(actors::Storage& storage, std::string_view prefix);

/// A directory that is written under a temporary name beside its place and gets its name when all of it is
/// durable. Destroyed before finish(), it is removed.
class StagedDirectory {
 public:
  /// Errc::already_exists when there is something at `path`.
  static core::Result<StagedDirectory> create(const std::string& path);
  /// Whether create() would begin, for those who have long work to do before they call it.
  static core::Result<void> check_path(const std::string& path);
  /// Also whether files can be written there: makes the directory above, if it is not there, and writes a
  /// little.
  static core::Result<void> check_place(const std::string& path);
  StagedDirectory(StagedDirectory&&) = default;
  StagedDirectory& operator=(StagedDirectory&&) = delete;
  ~StagedDirectory();

  core::Result<std::unique_ptr<actors::WritableFile>> file(std::string_view name);
  /// A whole file, durable.
  core::Result<void> write(std::string_view name, std::span<const std::byte> bytes);
  core::Result<void> finish();

 private:
  StagedDirectory(std::unique_ptr<actors::Storage> storage, std::string name, HeldDirectory temporary)
      : storage_(std::move(storage)), name_(std::move(name)), temporary_(std::move(temporary)) {}

  std::unique_ptr<actors::Storage> storage_;  ///< of the directory above; null after finish()
  std::string name_;
  HeldDirectory temporary_;
};

}  // namespace troupe::apps
