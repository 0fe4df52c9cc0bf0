#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "apps/files/dcp_values.hpp"
#include "apps/files/file_writer.hpp"
#include "apps/files/meter.hpp"
#include "apps/files/optimizer_names.hpp"
#include "apps/files/staged_directory.hpp"
#include "apps/troupe/checkpoint/export.hpp"
#include "core/errors.hpp"
#include "core/interop/crc32.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_archive.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

/// A shard and whose it is.
struct Part {
  std::size_t tensor = 0;
  std::size_t shard = 0;
};

std::vector<std::vector<Part>> parts_by_file(const core::Manifest& manifest) {
  std::vector<std::vector<Part>> files(manifest.files.size());
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& shards = manifest.tensors[i].shards;
    for (std::size_t j = 0; j < shards.size(); ++j) files[shards[j].file].push_back({i, j});
  }
  std::erase_if(files, [](const auto& parts) { return parts.empty(); });
  if (files.empty()) files.emplace_back();
  return files;
}

class DcpWriter {
 public:
  DcpWriter(const Source& source, StagedDirectory& out, DcpNames names)
      : source_(source),
        out_(out),
        meter_("writing", source.manifest.tensor_bytes()),
        names_(names),
        slots_(source.manifest.tensors.size(), kNoSlot) {
    if (source.torch) {
      for (const auto& placed : source.torch->tensors) {
        if (!placed.carried.empty()) carried_.emplace(placed.key, placed.carried);
      }
    }
    if (names == DcpNames::as_imported) {
      place_as_imported();
      return;
    }
    auto found = names == DcpNames::torch ? torch_names(source.manifest) : std::vector<TorchName>{};
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      TorchName name{source.manifest.tensors[i].key, {}};
      place(i, found.empty() ? std::move(name) : std::move(found[i]));
    }
  }

  Result<Exported> write() {
    if (names_ != DcpNames::as_imported && source_.manifest.find(kDcpValuesKey) != nullptr)
      return core::fail(Errc::invalid_argument,
                        "a tensor has the name '{}', under which the values are kept; use --rename",
                        kDcpValuesKey);
    const auto files = parts_by_file(source_.manifest);
    for (std::size_t i = 0; i < files.size(); ++i) TRY(write_file(files[i], static_cast<int>(i)));
    const auto encoded = TRY(core::encode_dcp_metadata(metadata_));
    // Nothing may be written that could not be read.
    TRY(core::parse_dcp_metadata(encoded));
    TRY(out_.write(core::kDcpMetadataName, encoded));
    TRY(out_.finish());
    Exported result{meter_.bytes(), metadata_.tensors.size(), metadata_.files, meter_.seconds()};
    result.files.emplace_back(core::kDcpMetadataName);
    return result;
  }

 private:
  static constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);

  void place(std::size_t tensor, TorchName name) {
    const auto& described = source_.manifest.tensors[tensor];
    const auto found = carried_.find(described.key);
    const bool is_carried = found != carried_.end() && described.dtype == core::DType::u8;
    const std::string carried(is_carried ? found->second : std::string_view());
    if (carried == kCarriedValue) {
      unread_.emplace_back(tensor, std::move(name));
      return;
    }
    if (!carried.empty()) whole_.push_back(tensor);
    slots_[tensor] = metadata_.tensors.size();
    metadata_.tensors.push_back(
        {std::move(name.key), described.dtype, described.shape, {}, std::move(name.path), carried});
  }

  void place_as_imported() {
    std::unordered_map<std::string_view, std::size_t> indices;
    for (std::size_t i = 0; i < slots_.size(); ++i) indices.emplace(source_.manifest.tensors[i].key, i);
    const auto take = [&](const std::string& key) {
      const auto found = indices.find(key);
      return found == indices.end() ? kNoSlot : std::exchange(found->second, kNoSlot);
    };
    for (const auto& key : source_.torch->added) take(key);
    std::unordered_map<std::string, std::size_t> wholes;  // slots of tensors that are put together
    for (const auto& [key, path, whole, offset, carried] : source_.torch->tensors) {
      const auto index = take(key);
      if (index == kNoSlot) continue;
      TorchName name{dotted(path), path};
      const auto found = whole.empty() ? wholes.end() : wholes.find(name.key);
      if (found != wholes.end()) {
        slots_[index] = found->second;
      } else {
        if (!whole.empty()) wholes.emplace(name.key, metadata_.tensors.size());
        place(index, std::move(name));
        if (!whole.empty()) metadata_.tensors.back().shape = whole;
      }
      if (!whole.empty()) offsets_[index] = offset;
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const auto& key = source_.manifest.tensors[i].key;
      if (take(key) != kNoSlot) place(i, {key, {}});
    }
  }

  Result<void> write_file(const std::vector<Part>& parts, int number) {
    metadata_.files.push_back(core::dcp_file_name(number, 0));
    FileWriter file(TRY(out_.file(metadata_.files.back())));
    std::uint64_t at = 0;
    if (number == 0) TRY(write_carried(file, at));
    if (number == 0) TRY(write_values(file, at));
    for (const auto& part : parts) {
      const auto& tensor = source_.manifest.tensors[part.tensor];
      const auto slot = slots_[part.tensor];
      if (slot == kNoSlot || !metadata_.tensors[slot].carried.empty()) continue;
      const auto& box = tensor.shards[part.shard].box;
      TRY(write_chunk(file, part.tensor, box, chunk_of(part.tensor, box), number, at));
    }
    return file.finish();
  }

  /// `chunk` is the box in the tensor as PyTorch has it.
  Result<void> write_chunk(FileWriter& file, std::size_t index, const core::Box& box, const core::Box& chunk,
                           int number, std::uint64_t& at) {
    const auto& tensor = source_.manifest.tensors[index];
    auto& described = metadata_.tensors[slots_[index]];
    const auto dtype = described.carried.empty() ? core::torch_dtype(tensor.dtype)
                                                 : TRY(core::torch_dtype_from(described.carried));
    auto extent = chunk.extent;
    if (dtype.has_axis() && !extent.empty()) extent.pop_back();
    const auto writer = TRY(core::TorchTensorWriter::create(dtype, extent));
    TRY(file.append(writer.head()));
    core::Crc32 crc;
    TRY(append_box(file, tensor, box, crc));
    TRY(file.append(writer.tail(crc.value())));
    described.chunks.push_back({chunk, {static_cast<std::uint32_t>(number), at, writer.total_bytes()}});
    at += writer.total_bytes();
    return {};
  }

  Result<void> append_box(FileWriter& file, const core::ManifestTensor& tensor, const core::Box& box,
                          core::Crc32& crc) {
    return stream_box(source_, tensor, tensor.dtype, box, kStreamBytes,
                      [&](std::span<const std::byte> bytes) {
                        crc.update(bytes);
                        meter_.add(bytes.size());
                        return file.append(bytes);
                      });
  }

  /// Tensors of other dtypes are whole, because shards may cut their elements.
  Result<void> write_carried(FileWriter& file, std::uint64_t& at) {
    for (const auto index : whole_) {
      const auto whole = core::Box::whole(source_.manifest.tensors[index].shape);
      if (whole.elements() > 0) TRY(write_chunk(file, index, whole, whole, 0, at));
    }
    for (auto& [index, name] : unread_) {
      const auto& tensor = source_.manifest.tensors[index];
      core::Crc32 crc;
      TRY(append_box(file, tensor, core::Box::whole(tensor.shape), crc));
      const auto bytes = static_cast<std::uint64_t>(core::elements_of(tensor.shape));
      metadata_.items.push_back({std::move(name.key), {0, at, bytes}, std::move(name.path)});
      at += bytes;
    }
    return {};
  }

  /// The box of a shard in the tensor as PyTorch has it.
  core::Box chunk_of(std::size_t tensor, core::Box box) const {
    const auto found = offsets_.find(tensor);
    if (found == offsets_.end()) return box;
    box.offset.insert(box.offset.begin(), 0);
    box.extent.insert(box.extent.begin(), 1);
    for (std::size_t axis = 0; axis < box.offset.size(); ++axis) box.offset[axis] += found->second[axis];
    return box;
  }

  /// `at` is where the file ends.
  Result<void> write_item(FileWriter& file, const core::KeyPath& path, const core::Value& value,
                          std::uint64_t& at) {
    const auto bytes = TRY(core::encode_torch_value(value));
    TRY(file.append(bytes));
    metadata_.items.push_back({dotted(path), {0, at, bytes.size()}, path});
    at += bytes.size();
    return {};
  }

  Result<void> write_values(FileWriter& file, std::uint64_t& at) {
    const auto& common = source_.manifest.common;
    if (names_ == DcpNames::as_imported) {
      const auto* trainer = source_.form == SourceForm::troupe ? common.find(kTrainerKey) : &common;
      return trainer != nullptr ? write_items(file, *trainer, at) : Result<void>();
    }
    if (source_.form == SourceForm::safetensors) return {};
    TRY(write_item(file, {kDcpValuesKey}, dcp_values_of(source_.manifest), at));
    if (names_ != DcpNames::torch) return {};
    for (auto& [name, steps] : TRY(torch_steps(source_.manifest)))
      TRY(write_scalar(file, std::move(name), static_cast<float>(steps), at));
    return {};
  }

  Result<void> write_items(FileWriter& file, const core::Value& values, std::uint64_t& at) {
    std::unordered_set<std::string_view> tensors;
    for (const auto& tensor : metadata_.tensors) tensors.insert(tensor.key);
    for (const auto& value : flattened(values, source_.torch->whole)) {
      if (!tensors.contains(dotted(value.path))) TRY(write_item(file, value.path, value.value, at));
    }
    return {};
  }

  Result<void> write_scalar(FileWriter& file, TorchName name, float value, std::uint64_t& at) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    const auto writer = TRY(core::TorchTensorWriter::create(core::DType::f32, {}));
    core::Crc32 crc;
    crc.update(bytes);
    TRY(file.append(writer.head()));
    TRY(file.append(bytes));
    TRY(file.append(writer.tail(crc.value())));
    metadata_.tensors.push_back({std::move(name.key),
                                 core::DType::f32,
                                 {},
                                 {{core::Box{}, {0, at, writer.total_bytes()}}},
                                 std::move(name.path),
                                 {}});
    at += writer.total_bytes();
    return {};
  }

  const Source& source_;
  StagedDirectory& out_;
  Meter meter_;
  DcpNames names_;
  std::vector<std::size_t> slots_;                        ///< in the metadata, of the manifest's tensors
  std::unordered_map<std::size_t, core::Shape> offsets_;  ///< of those that are parts
  std::unordered_map<std::string_view, std::string_view> carried_;  ///< keys and dtypes, as in TorchPlace
  std::vector<std::size_t> whole_;                                  ///< tensors of such dtypes
  std::vector<std::pair<std::size_t, TorchName>> unread_;           ///< tensors that are values
  core::DcpMetadata metadata_;
};

}  // namespace

Result<Exported> export_dcp(const Source& source, const std::string& path, DcpNames names) {
  auto out = TRY(StagedDirectory::create(path));
  return DcpWriter(source, out, names).write();
}

}  // namespace troupe::apps
