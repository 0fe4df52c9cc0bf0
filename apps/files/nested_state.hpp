#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/world/storage/posix.hpp"
#include "apps/files/source.hpp"
#include "apps/files/strided_files.hpp"
#include "core/interop/plain_data.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Values by their paths, in the order in which they come.
class ValueTree {
 public:
  /// False when something else is in the way; the value is then still there.
  bool put(std::span<const core::Key> path, core::Value& value);
  core::Value::Map take();

 private:
  struct Entry {
    core::Key key;
    core::Value value;
    std::unique_ptr<ValueTree> inner;  ///< instead of the value
  };
  std::map<core::Key, std::size_t> places_;
  std::vector<Entry> entries_;
};

/// Builds a source from the tensors and values of PyTorch's files: from one file, or several that each have a
/// part of a nested state.
class NestedState {
 public:
  /// Opens the directory.
  static core::Result<NestedState> open(SourceForm form, const std::string& path,
                                        const std::string& directory, actors::Links links);

  /// Adds a file of the directory or of a folder in it. Returns its number among the manifest's files.
  core::Result<std::uint32_t> add_file(const std::string& name);
  /// Opens a file without adding it: one that has no elements.
  core::Result<posix::MappedFile> open_file(const std::string& name) const;
  const posix::MappedFile& file(std::uint32_t number) const { return files_[number]; }
  const std::string& name(std::uint32_t number) const { return source_.manifest.files[number].name; }
  core::Result<bool> has_file(const std::string& name) const;
  core::Result<std::uint64_t> size_of(const std::string& name) const;

  /// Elements in `file` that begin at `stored`, a part of its bytes; contiguous if there are no strides.
  core::ManifestShard shard(std::uint32_t file, std::span<const std::byte> stored, core::Shape strides,
                            std::size_t width, core::Box box);
  /// Whether elements of `bytes` in memory may be read of which files have `stored` bytes.
  bool may_repeat(std::uint64_t bytes, std::uint64_t stored);
  /// `carried` as in TorchPlace.
  void add_tensor(core::ManifestTensor tensor, core::KeyPath path, std::string carried = {});
  /// The bytes of a value that cannot be read, for the given reason.
  void add_unread(std::string key, core::KeyPath path, std::uint32_t file, std::span<const std::byte> bytes,
                  std::string reason);

  /// Raises the budget by what values of `bytes` in files may take in memory.
  void allow_values(std::uint64_t bytes);
  core::ValueBudget& budget() { return budget_; }
  /// Where the path is empty, or something else is in its way, the key becomes its only part.
  void add_value(const std::string& key, core::KeyPath path, core::Value value);
  void leave_out(std::string key, std::string reason);
  void note(std::string text) { source_.notes.push_back(std::move(text)); }

  Source& source() { return source_; }
  /// Errc::corrupt when two tensors have one name.
  core::Result<Source> finish() &&;

 private:
  NestedState(Source source, actors::PosixStorage* storage, StridedFiles* strided)
      : source_(std::move(source)), storage_(storage), strided_(strided) {}

  Source source_;
  actors::PosixStorage* storage_;  ///< of the source, like the next one
  StridedFiles* strided_;
  std::vector<posix::MappedFile> files_;        ///< as the manifest's first ones
  std::map<std::uint32_t, std::string> apart_;  ///< names of files of strided elements, by the real file
  std::uint64_t repeated_ = 0;                  ///< bytes of elements that repeat stored ones
  std::uint64_t file_bytes_ = 0;
  core::ValueBudget budget_;
  ValueTree values_;
};

}  // namespace troupe::apps
