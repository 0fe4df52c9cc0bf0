#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/storage.hpp"
#include "core/boxes/box.hpp"
#include "core/result.hpp"
#include "posix/mapped_file.hpp"

namespace troupe::apps {

/// Elements that lie apart, as torch.save leaves those of a transposed or expanded tensor.
struct StridedElements {
  std::span<const std::byte> stored;  ///< from the first element to the last one
  std::size_t width = 1;              ///< bytes of an element
  core::Shape shape;
  core::Shape strides;  ///< in elements, one per axis; 0 repeats

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(core::elements_of(shape)) * width; }
};

/// A storage that is only read, with files that do not exist: each is a row of strided elements, which are
/// put in order while they are read. So all that reads shards can read them.
class StridedFiles final : public actors::Storage {
 public:
  explicit StridedFiles(std::unique_ptr<actors::Storage> real) : real_(std::move(real)) {}

  /// Appends to the file of this name, which may not exist really, and returns where the elements begin in
  /// it. What is `stored` must stay; `keep()` takes the memory for that.
  std::uint64_t append(const std::string& name, StridedElements elements);
  std::uint64_t size_of(const std::string& name) const;
  void keep(std::vector<posix::MappedFile> files);

  core::Result<std::unique_ptr<actors::WritableFile>> create(std::string_view path) override;
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override;
  core::Result<std::size_t> read_into(std::string_view path, std::uint64_t offset,
                                      std::span<std::byte> bytes) override;
  core::Result<std::uint64_t> size(std::string_view path) override;
  core::Result<void> make_directory(std::string_view path) override;
  core::Result<std::vector<std::string>> list(std::string_view path) override;
  core::Result<void> rename(std::string_view from, std::string_view to) override;
  core::Result<void> remove(std::string_view path) override;
  core::Result<void> sync_directory(std::string_view path) override;

 private:
  struct Part {
    std::uint64_t begin = 0;
    StridedElements elements;
  };
  using Parts = std::vector<Part>;

  std::unique_ptr<actors::Storage> real_;
  std::vector<posix::MappedFile> kept_;
  std::map<std::string, Parts, std::less<>> files_;
};

}  // namespace troupe::apps
