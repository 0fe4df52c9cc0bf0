#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/random.hpp"
#include "actors/world/storage.hpp"

namespace troupe::actors {

struct SimulatedStorageOptions {
  std::uint64_t seed = 0;
  std::string name = "disk";
  std::uint64_t capacity_bytes = std::numeric_limits<std::uint64_t>::max();
  std::size_t sector_bytes = 512;
  double read_failure = 0;   ///< probability that a read ends in an error
  double write_failure = 0;  ///< that an append ends in an error after some of its bytes
  double sync_failure = 0;   ///< that a sync ends in an error and forgets what was not durable
};

/// A simulated disk with a cache. What was not synced is at the mercy of crash(): each sector of a file is
/// independently present, missing, torn or garbage; of the changes to a directory only the first few have
/// happened. A rename between two directories may then be visible in only one of them. For one thread.
///
/// A failed sync does what Linux does: the bytes stay readable, a later sync reports success, and after a
/// crash they are lost.
class SimulatedStorage final : public Storage {
 public:
  explicit SimulatedStorage(SimulatedStorageOptions options);
  ~SimulatedStorage() override;

  /// Power fails. Open files end in errors.
  void crash();
  /// Changes the fault rates or the capacity.
  void set_options(SimulatedStorageOptions options) { options_ = std::move(options); }
  /// From now on syncs succeed and do nothing.
  void set_lying(bool lying) { lying_ = lying; }
  /// Flips one bit of a file at rest.
  core::Result<void> rot(std::string_view path);
  std::uint64_t used_bytes() const { return used_bytes_; }

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override;
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override;
  core::Result<std::uint64_t> size(std::string_view path) override;
  core::Result<void> make_directory(std::string_view path) override;
  core::Result<std::vector<std::string>> list(std::string_view path) override;
  core::Result<void> rename(std::string_view from, std::string_view to) override;
  core::Result<void> remove(std::string_view path) override;
  core::Result<void> sync_directory(std::string_view path) override;

 private:
  struct Node;
  class File;
  // Owned by the names of the directory before and after its last sync, and by open files.
  using NodePointer = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePointer, std::less<>>;
  /// What one call did to the names of one directory; no node means that the name is gone.
  using Change = std::vector<std::pair<std::string, NodePointer>>;

  /// A file or a directory.
  struct Node {
    bool is_directory = false;
    std::vector<std::byte> bytes;
    std::vector<std::byte> durable_bytes;
    std::size_t clean_bytes = 0;  ///< from the beginning: already covered by a sync, successful or not
    /// Ranges that a failed sync dropped: later syncs leave them out.
    std::vector<std::pair<std::size_t, std::size_t>> forgotten;
    Names names;
    Names durable_names;
    std::vector<Change> changes;  ///< since the last sync, in order
  };
  /// A directory and a name in it, which may not exist.
  struct Place {
    NodePointer directory;
    std::string name;
    NodePointer node;
  };

  core::Result<NodePointer> find(std::string_view path) const;
  core::Result<Place> locate(std::string_view path) const;
  static void change(Node& directory, Change change);
  /// The bytes as they are in the cache, except for what failed syncs dropped.
  static std::vector<std::byte> image_of(const Node& file);
  static void apply(Names& names, const Change& change);
  void crash_node(Node& node);
  void crash_file(Node& file);
  core::Result<void> append(Node& file, std::span<const std::byte> bytes);
  core::Result<void> sync(Node& file);

  SimulatedStorageOptions options_;
  RandomStream random_;
  NodePointer root_;
  bool lying_ = false;
  std::uint64_t crashes_ = 0;
  std::uint64_t used_bytes_ = 0;  ///< written and not removed, without what crashes gave back
};

}  // namespace troupe::actors
