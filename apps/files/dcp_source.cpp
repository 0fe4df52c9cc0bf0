#include "apps/files/dcp_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "actors/planes/checkpoint/directory.hpp"
#include "apps/files/dcp_values.hpp"
#include "apps/files/meter.hpp"
#include "core/errors.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/lfs_pointer.hpp"
#include "core/interop/plain_data.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::string_view kDataSuffix = ".distcp";

class DcpReader {
 public:
  DcpReader(NestedState& state, std::string folder, bool check)
      : state_(state), folder_(std::move(folder)), check_(check) {}

  Result<void> read() {
    metadata_ = TRY(read_metadata());
    TRY(open_files());
    for (auto& skipped : metadata_.skipped)
      state_.leave_out(std::move(skipped.key), std::move(skipped.reason));
    std::uint64_t bytes = 0;
    for (const auto& tensor : metadata_.tensors) {
      for (const auto& chunk : tensor.chunks) bytes += chunk.place.bytes;
    }
    Meter meter("checking", bytes);
    state_.source().manifest.tensors.reserve(metadata_.tensors.size());
    for (auto& tensor : metadata_.tensors) TRY(add_tensor(std::exchange(tensor, {}), meter));
    return add_items();
  }

 private:
  std::string path_in_state(std::string_view name) const { return actors::path_in(folder_, name); }

  Result<core::DcpMetadata> read_metadata() {
    const auto name = path_in_state(core::kDcpMetadataName);
    const auto file = TRY(state_.open_file(name));
    auto metadata = core::parse_dcp_metadata(file.bytes());
    if (!metadata) return core::fail(metadata.error().code, "{}: {}", name, metadata.error().message);
    return metadata;
  }

  Result<void> open_files() {
    Result<void> refused;  // why what is there is not a file
    const auto good = core::check_dcp_files(metadata_, [&](const std::string& name) {
      const auto size = state_.size_of(path_in_state(name));
      if (!size && size.error().code != Errc::not_found) refused = Result<void>(tl::unexpected(size.error()));
      if (size && *size > 0 && *size <= core::kPointerBytes) {
        const auto file = state_.open_file(path_in_state(name));
        if (!file) refused = Result<void>(tl::unexpected(file.error()));
      }
      return size ? std::optional(*size) : std::nullopt;
    });
    TRY(std::move(refused));
    TRY(Result<void>(good));
    for (const auto& name : metadata_.files) numbers_.push_back(TRY(state_.add_file(path_in_state(name))));
    return say_unused();
  }

  /// A directory that was saved to twice, by more ranks first, keeps files of the first time.
  Result<void> say_unused() {
    const std::set<std::string_view> used(metadata_.files.begin(), metadata_.files.end());
    std::vector<std::string> unused;
    for (auto& name : TRY(state_.source().storage->list(folder_))) {
      if (name.ends_with(kDataSuffix) && !used.contains(name)) unused.push_back(std::move(name));
    }
    if (unused.empty()) return {};
    state_.note(fmt::format("not read, as the metadata does not point to {}: {}{}",
                            unused.size() == 1 ? "it" : "them", path_in_state(unused.front()),
                            unused.size() == 1 ? "" : fmt::format(" and {} more", unused.size() - 1)));
    return {};
  }

  Result<std::span<const std::byte>> bytes_at(const core::DcpPlace& place) const {
    const auto bytes = state_.file(numbers_[place.file]).bytes();
    if (place.offset > bytes.size() || place.bytes > bytes.size() - place.offset)
      return core::fail(Errc::corrupt, "{} became shorter while it was read", metadata_.files[place.file]);
    return bytes.subspan(place.offset, place.bytes);
  }

  Result<void> add_tensor(core::DcpTensor tensor, Meter& meter) {
    core::ManifestTensor described{tensor.key, tensor.dtype, tensor.shape, {}};
    described.shards.reserve(tensor.chunks.size());
    for (const auto& chunk : tensor.chunks) {
      const auto bytes = TRY(bytes_at(chunk.place));
      auto elements = core::dcp_chunk_elements(tensor, chunk, bytes, check_);
      if (!elements && elements.error().code == Errc::unavailable) {
        state_.leave_out(std::move(tensor.key), elements.error().message);
        return {};
      }
      if (!elements)
        return core::fail(elements.error().code, "{}, {} of '{}': {}", metadata_.files[chunk.place.file],
                          to_string(chunk.box), tensor.key, elements.error().message);
      const auto number = numbers_[chunk.place.file];
      described.shards.push_back(state_.shard(number, elements->stored, std::move(elements->strides),
                                              core::size_of(tensor.dtype), chunk.box));
      state_.file(number).release(bytes);
      if (check_) meter.add(chunk.place.bytes);
    }
    state_.add_tensor(std::move(described), std::move(tensor.path), std::move(tensor.carried));
    return {};
  }

  Result<void> add_items() {
    std::uint64_t bytes = 0;
    for (const auto& item : metadata_.items) bytes += item.place.bytes;
    state_.allow_values(bytes);
    for (auto& item : metadata_.items) {
      const auto place = TRY(bytes_at(item.place));
      auto value = core::parse_torch_value(place, state_.budget());
      state_.file(numbers_[item.place.file]).release(place);
      auto& source = state_.source();
      if (!value && value.error().code == Errc::unavailable) {
        state_.add_unread(std::move(item.key), std::move(item.path), numbers_[item.place.file], place,
                          value.error().message);
      } else if (!value) {
        state_.leave_out(std::move(item.key), value.error().message);
      } else if (item.key == kDcpValuesKey && take_dcp_values(*value, source.manifest)) {
        source.has_values = true;
      } else {
        state_.add_value(item.key, std::move(item.path), std::move(*value));
      }
    }
    return {};
  }

  NestedState& state_;
  std::string folder_;
  bool check_;
  core::DcpMetadata metadata_;
  std::vector<std::uint32_t> numbers_;  ///< of the metadata's files among the state's
};

}  // namespace

Result<void> add_dcp(NestedState& state, const std::string& folder, bool check) {
  return DcpReader(state, folder, check).read();
}

Result<Source> open_dcp(const std::string& directory, bool check, actors::Links links) {
  auto state = TRY(NestedState::open(SourceForm::dcp, directory, directory, links));
  TRY(add_dcp(state, "", check));
  return std::move(state).finish();
}

}  // namespace troupe::apps
