#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/pickle_writer.hpp"

namespace troupe::apps {

inline constexpr std::string_view kDcpModule = "torch.distributed.checkpoint.metadata";

/// `what` over and over, to about this many bytes.
std::string repeated(std::string_view what, std::size_t bytes);

/// Writes the metadata of a checkpoint of torch.distributed.checkpoint without any of the checks of
/// core::encode_dcp_metadata(), so that things can be said once and meant often.
class CraftedDcp {
 public:
  using Fill = std::function<void(CraftedDcp&)>;

  core::PickleWriter pickle{4};

  /// An object whose state is a dict that `attributes` fills.
  void object(std::string_view name, const Fill& attributes);
  void object(std::string_view module, std::string_view name, const Fill& attributes);
  /// The dict of a new object, which stays on top, is this remembered one.
  void object_with(std::string_view name, std::uint32_t state);
  void size(const std::vector<std::int64_t>& extents);
  void list(const Fill& items);
  void dict(const Fill& entries);
  /// The description of an f32 tensor; `chunks` fills the list of its chunks.
  void tensor(const std::vector<std::int64_t>& shape, const Fill& chunks);
  void chunk(const std::vector<std::int64_t>& offset, const std::vector<std::int64_t>& extent);
  /// An entry of storage_data: where the bytes of a tensor's chunk (or, without offset, of an item) lie.
  void stored(std::string_view key, const std::vector<std::int64_t>* offset, std::size_t begin,
              std::size_t bytes, std::string_view file = "__0_0.distcp");
  /// A value that is not a tensor.
  void item();

  /// The whole pickle; the three functions fill the dicts.
  static std::string metadata(const Fill& entries, const Fill& storage, const Fill& planner);

 private:
  void dtype();
};

/// An archive of torch.save with this object in it.
std::string torch_archive_of(const std::function<void(core::PickleWriter&)>& write);

std::string text_of(std::span<const std::byte> bytes);

}  // namespace troupe::apps
